"""The sampler chain, inside the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .library import Library

__all__ = ["Sampler"]


class Sampler:
    """Greedy without a temperature, else top-k, top-p, temperature and a seeded draw, where they are set."""

    def __init__(self, library: Library, settings: Mapping[str, Any]) -> None:
        """`settings` of a spec; an unset seed becomes one random seed for the process, told by `seed`."""
        self._library = library
        self._settings = settings
        self._sample = library.first("llama_sampler_sample")
        self._free = library.first("llama_sampler_free")
        self.seed: int | None = settings["seed"] if settings["temperature"] else None
        self.replace: Callable[[int], int] | None = None
        """What stands between the sampler and the record; for planted faults only."""
        self._chain = self._build()

    def _build(self) -> Any:
        first = self._library.first
        settings = self._settings
        chain = first("llama_sampler_chain_init")(first("llama_sampler_chain_default_params")())
        add = first("llama_sampler_chain_add")
        if not settings["temperature"]:
            add(chain, first("llama_sampler_init_greedy")())
            return chain
        if settings["top_k"] is not None:
            add(chain, first("llama_sampler_init_top_k")(settings["top_k"]))
        if settings["top_p"] is not None:
            add(chain, first("llama_sampler_init_top_p")(settings["top_p"], 1))
        add(chain, first("llama_sampler_init_temp")(settings["temperature"]))
        add(chain, self._draw())
        return chain

    def _draw(self) -> Any:
        first = self._library.first
        wanted = int(self._library.api.LLAMA_DEFAULT_SEED) if self.seed is None else self.seed
        draw = first("llama_sampler_init_dist")(wanted)
        self.seed = int(first("llama_sampler_get_seed")(draw)) & 0xFFFFFFFF
        return draw

    def restart(self) -> None:
        """Start over with the same seed, so that every request of a process draws the same way."""
        self.close()
        self._chain = self._build()

    def sample(self, context: Any) -> int:
        """The next token, from the last logits row of `context`."""
        token = int(self._sample(self._chain, context, -1))
        return token if self.replace is None else self.replace(token)

    def close(self) -> None:
        """Free the chain with the samplers in it."""
        self._free(self._chain)
