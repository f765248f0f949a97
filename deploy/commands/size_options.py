"""The options of `muxfleet plan` that ask for the number of nodes."""

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from deploy.commands.told_progress import told_work
from deploy.errors import OptionNotUsable
from deploy.fleet_file.settings import FleetFile
from deploy.planning.fleet_sizing import SizeQuestion, cheapest_size, prices_of
from placement.scaling.elastic_pool import FleetSize, SizeLimits
from placement.solvers.entry import IsTimeUp

Attainment = Annotated[
    float | None,
    typer.Option(metavar="SHARE", help="Find the cheapest nodes that keep it, as 0.99.", min=0.01, max=0.99999),
]
Budget = Annotated[
    float | None, typer.Option(metavar="COST", help="With --attainment: per hour, at most.", min=0.0, max=1e12)
]
Price = Annotated[
    str | None,
    typer.Option(metavar="POOL=COST,...", help="With --attainment: of a node per hour. Default: 1 for each GPU."),
]
MostNodes = Annotated[int | None, typer.Option(help="With --attainment: of any pool. Default: 64.", min=1, max=10_000)]

_MOST_NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSize:
    """The options that ask for a number of nodes; nothing was asked without `attainment`."""

    attainment: float | None
    budget: float | None
    price: str | None
    most_nodes: int | None

    def found_for(
        self, fleet: FleetFile, console: Console, *, choose_meshes: bool, is_time_up: IsTimeUp
    ) -> FleetSize | None:
        """Raises OptionNotUsable."""
        if self.attainment is None:
            given = (("--budget", self.budget), ("--price", self.price), ("--most-nodes", self.most_nodes))
            for option, value in given:
                if value is not None:
                    raise OptionNotUsable(
                        option=option, value=value, remedy="say what is to be kept: --attainment 0.99"
                    )
            return None
        if choose_meshes:
            remedy = "it finds nodes for the units of the file; drop --choose-meshes"
            raise OptionNotUsable(option="--attainment", value=self.attainment, remedy=remedy)
        question = SizeQuestion(
            limits=SizeLimits(target_attainment=self.attainment, max_cost_per_hour=self.budget),
            most_nodes=_MOST_NODES if self.most_nodes is None else self.most_nodes,
            prices={} if self.price is None else prices_of(self.price, fleet),
        )
        with told_work(console, "looking for the cheapest nodes"):
            return cheapest_size(fleet, question, is_time_up=is_time_up)
