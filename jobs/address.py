"""The option by which a command is told of a cluster."""

import click

ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # as Ray itself looks for one
address_option = click.option(
    "--address",
    envvar=ADDRESSES,
    default="",
    metavar="URL",
    help="http://HOST:8265, of the cluster's dashboard; else that of RAY_API_SERVER_ADDRESS or "
    "RAY_ADDRESS. The token comes from RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.",
)
