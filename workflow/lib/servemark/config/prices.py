"""Prices for the report's cost of tokens. They decide no result and are not in the ledger key."""

from typing import Annotated

from pydantic import Field

from servemark.records import Strict

_Price = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]


class Prices(Strict):
    """What a GPU-hour and a kilowatt-hour cost."""

    gpu_hour: _Price = Field(description="price of one GPU for an hour")
    kwh: _Price | None = Field(
        default=None, description="price of a kilowatt-hour that the GPUs use; default: none, `gpu_hour` includes it"
    )
    currency: str = Field(pattern=r"^\S{1,8}$", description="such as `EUR`")
