"""The Hydra sweeper `one_at_a_time`: a thin shell around `isomatrix.runner.experiment`.

Hydra 1.3 accepts a sweeper only from a module under `hydra_plugins`, which is where this folder is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from isomatrix.runner import config_schema, session
from isomatrix.runner.compose import build_plan, parse_arguments
from isomatrix.runner.experiment import Experiment
from omegaconf import DictConfig

if TYPE_CHECKING:
    from hydra.plugins.launcher import Launcher
    from hydra.types import HydraContext, TaskFunction

__all__ = ["OneAtATimeSweeper", "install"]


class OneAtATimeSweeper(Sweeper):
    """Moves one axis at a time around the baseline and hands one round per job to the launcher."""

    launcher: Launcher
    context: HydraContext
    composed: DictConfig

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keep what Hydra gives and make the launcher that is configured."""
        self.composed = config
        self.context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Plan, then run round by round; what came out is kept in the session."""
        current = session.current()
        request = parse_arguments(arguments)
        config, current.plan = build_plan(self.context.config_loader, self.composed, request)
        current.config = config
        if current.verb == "run":
            current.finished = Experiment(config, current.plan, arguments).run(self._launch_round)

    def _launch_round(self, overrides: list[str], index: int) -> None:
        for job in self.launcher.launch([overrides], initial_job_idx=index):
            _ = job.return_value  # raises what the round raised


def install() -> None:
    """Make the sweeper and the configuration schema known to Hydra, in wheel and editable installs alike."""
    config_schema.register()
    ConfigStore.instance().store(
        group="hydra/sweeper",
        name="one_at_a_time",
        node={"_target_": f"{OneAtATimeSweeper.__module__}.{OneAtATimeSweeper.__qualname__}"},
        provider="isomatrix",
    )
    Plugins.instance().register(OneAtATimeSweeper)
