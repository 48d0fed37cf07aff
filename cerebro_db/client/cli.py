"""The ``cerebro`` command. Its subcommands are in modules of their own, which ``app`` is made of."""

from __future__ import annotations

import psycopg2
import typer

from ..embedded.errors import ClusterError
from .commands import clusters, doctor, files, steering, trained_models, training
from .commands import runs as run_commands
from .display.terminal import fail

app = typer.Typer(
    help="Deep-learning model selection inside PostgreSQL.",
    epilog="Environment: CEREBRO_HOME is the folder of the embedded clusters (default: ~/.local/share/cerebro, for root"
    " /var/lib/cerebro); CEREBRO_CLUSTER names one of them; CEREBRO_DSN is another database to use; PG_CONFIG chooses"
    " the PostgreSQL installation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (clusters, training, run_commands, steering, trained_models, files, doctor):
    module.register(app)


def main() -> None:
    try:
        app()
    except ClusterError as error:
        fail(str(error))
    except psycopg2.OperationalError as error:
        fail(str(error).strip().splitlines()[0])


if __name__ == "__main__":
    main()
