"""How a bug is planted: a few words of the engine's source are replaced, and put back after."""

import inspect
import itertools
import linecache
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

_serial = itertools.count()


@dataclass
class Plant:
    """What a bug may reach: the live engine's parts, and its source."""

    engine: Any
    monkeypatch: pytest.MonkeyPatch

    @property
    def core(self):
        return self.engine.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler(self):
        return self.core.scheduler

    @property
    def kv_manager(self):
        return self.scheduler.kv_cache_manager

    @property
    def runner(self):
        return self.core.model_executor.driver_worker.worker.model_runner

    def source(self, owner, name, *replacements):
        """Replace (old, new) pairs in the source of ``owner.name``: a method, function or kernel.

        Each ``old`` must be there exactly once, or this vLLM is not the one the bug was
        written for.
        """
        if inspect.isclass(owner):
            owner = next(cls for cls in owner.__mro__ if name in vars(cls))
        original = vars(owner)[name]
        kernel = hasattr(original, "fn") and not inspect.isfunction(original)
        function = original.fn if kernel else getattr(original, "__func__", original)
        function = inspect.unwrap(function)
        text = textwrap.dedent(inspect.getsource(function))
        for old, new in replacements:
            assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        if inspect.isclass(owner):
            text = text.replace("super()", f"super({owner.__name__}, self)")
        file = f"<planted bug {next(_serial)} in {name}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        # The names it knows are those of its module, at the time of each call.
        scope = dict(function.__globals__)
        if inspect.isclass(owner):
            scope[owner.__name__] = owner
        exec(compile(text, file, "exec"), scope)
        self.monkeypatch.setattr(owner, name, scope[name])

    def wrap(self, owner, name, around):
        """``owner.name`` becomes ``around(original, *args, **kwargs)``."""
        original = getattr(owner, name)
        self.monkeypatch.setattr(
            owner, name, lambda *args, **kwargs: around(original, *args, **kwargs)
        )
