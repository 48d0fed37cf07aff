"""The Python client: a method for each SQL function and view about runs and trained models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from psycopg2 import sql

from cerebro_db.core.names import Name

from . import frames, images, interrupts, notebooks, report, trackers
from .accelerometers import loading
from .arguments import (
    DRY_RUN,
    FitArguments,
    PackArguments,
    Related,
    SearchArguments,
    TaskArguments,
    TrainArguments,
    as_json,
    call,
)
from .errors import CannotConnect, ClientError
from .frames import Frame
from .methods.judging import JudgingMethods
from .methods.registry import RegistryMethods
from .methods.runs import RunMethods
from .methods.steering import SteeringMethods
from .methods.trained_models import ModelMethods
from .models import architectures, archives, keras_models
from .orm import RunProgress
from .run_handle import AnyRun, RunHandle, number_of, owner_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .accelerometers.loading import Loaded
    from .models.model_files import Exported


def connect(target: Any = None) -> Cerebro:
    """A client of the database that ``target`` names.

    ``target`` is a DSN, an SQLAlchemy engine or URL, or a psycopg2 connection. Without it, CEREBRO_DSN or else the
    embedded cluster is used. The client opens connections of its own, as the same user; each statement commits.
    """
    cerebro = Cerebro(target)
    if not cerebro.rows("SELECT 1 FROM pg_extension WHERE extname = 'cerebro_db'"):
        database = cerebro.rows("SELECT current_database()")[0][0]
        raise CannotConnect(
            f"The database {database} does not have the extension cerebro_db.",
            "As a superuser: CREATE EXTENSION cerebro_db CASCADE;",
        )
    return cerebro


class Cerebro(RunMethods, SteeringMethods, ModelMethods, JudgingMethods, RegistryMethods):
    """``train``, ``search`` and ``fit`` wait for the end of the run, which Ctrl-C cancels, and return its handle. With
    ``wait=False`` they return as soon as the rows are packed and the run has begun; the server continues the run, also
    when this process ends.

    A run is given by its number, its row or its handle.

    Several users can have a run of one number. A number then means your own run. For an administrator or a monitor, a
    row, or the argument ``owner``, says whose run it is.
    """

    def __enter__(self) -> Cerebro:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- train -------------------------------------------------------------------------------------

    def fit(
        self,
        source_table: str,
        model_table: str,
        configurations: str | Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        wait: bool = True,
        **arguments: Unpack[FitArguments],
    ) -> RunHandle:
        """Trains the configurations that you list. The comment of cerebro.fit describes the arguments."""
        needed = {"source_table": source_table, "model_table": model_table, "configurations": configurations}
        return self._started(call("fit", needed, arguments, FitArguments), wait)

    def search(
        self,
        source_table: str,
        model_table: str,
        space: Mapping[str, Any],
        *,
        wait: bool = True,
        **arguments: Unpack[SearchArguments],
    ) -> RunHandle:
        """Trains configurations from a space; docs/train.md describes spaces and methods."""
        needed = {"source_table": source_table, "model_table": model_table, "space": space}
        return self._started(call("search", needed, arguments, SearchArguments), wait)

    def train(
        self, source_table: str, model_table: str, *, wait: bool = True, **arguments: Unpack[TrainArguments]
    ) -> RunHandle:
        """Chooses the space and searches in it. The comment of cerebro.train describes the arguments."""
        needed = {"source_table": source_table, "model_table": model_table}
        return self._started(call("train", needed, arguments, TrainArguments), wait)

    def dry_run(self, verb: Literal["fit", "search", "train"], **arguments: Any) -> list[str]:
        """What a ``fit``, ``search`` or ``train`` with these arguments would do, as its notices say it.

        Nothing is packed, trained or kept.
        """
        known = {"fit": FitArguments, "search": SearchArguments, "train": TrainArguments}
        needed = ("source_table", "model_table", *{"fit": ["configurations"], "search": ["space"], "train": []}[verb])
        given = {name: arguments.pop(name) for name in needed if name in arguments}
        if missing := sorted(set(needed) - set(given)):
            raise TypeError(f"the argument {', '.join(missing)} is missing")
        _, notices = self.rows_and_notices(*call(verb, given, arguments, known[verb], more=DRY_RUN))
        return notices

    def _started(self, statement: tuple[sql.Composed, dict[str, Any]], wait: bool) -> RunHandle:
        """The handle of the run that a statement starts; with ``wait``, once the run has ended. Ctrl-C cancels it."""
        handle = None
        try:
            with interrupts.deferred():  # a run without a known number could not be cancelled
                handle = RunHandle(self, self.rows(*statement)[0][0])
            if wait:
                handle.wait()
            return handle
        except KeyboardInterrupt:
            if handle is not None:
                handle.cancel()
            raise

    def handle(self, run: AnyRun) -> RunHandle:
        """The handle of a run that any session has started."""
        return RunHandle(self, self.run(run).run)

    def status_within(self, run: AnyRun, seconds: float) -> str:
        """The run's status, as soon as the run has ended or after at most so many seconds."""
        return self.rows("SELECT cerebro.wait(%s, %s)", (number_of(run), seconds))[0][0]

    def resume(
        self, run: AnyRun, epochs: int | None = None, retry_failed: bool = False, wait: bool = True
    ) -> RunHandle:
        """Continues a run that was cancelled, was interrupted or failed. ``epochs`` extends a finished run.

        ``retry_failed`` trains failed configurations again.
        """
        statement = sql.SQL("SELECT cerebro.resume(%(run)s, %(epochs)s, %(retry_failed)s, wait => false)")
        given = {"run": number_of(run), "epochs": epochs, "retry_failed": retry_failed}
        return self._started((sql.Composed([statement]), given), wait)

    def cancel(self, run: AnyRun, owner: str | None = None) -> bool:
        """Asks a run to end, which takes about a second. Returns False if the run was not under way."""
        return self.rows("SELECT cerebro.cancel(%s, %s)", (number_of(run), owner_of(run, owner)))[0][0]

    def materialize(
        self,
        run: AnyRun,
        model_table: str,
        which: str | None = None,
        fold: int | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Makes the model tables of a run from its states. The run need not have finished.

        ``which`` states: ``best`` or ``last``. Without it the best ones, if the run keeps them. ``fold``: of a run with
        folds, the models of this fold instead of those on all rows. ``replace``: a model of yours of this name.
        """
        values = (number_of(run), model_table, which, fold)
        self.rows(f"SELECT cerebro.materialize(%s, %s, %s, %s{', replace => true' if replace else ''})", values)

    def forget(self, run: AnyRun, owner: str | None = None) -> None:
        """Removes a run's log and states. Its model tables stay."""
        self.rows("SELECT cerebro.forget(%s, %s)", (number_of(run), owner_of(run, owner)))

    # --- pack --------------------------------------------------------------------------------------

    def pack(
        self, source_table: str, output_table: str, target: str | Sequence[str], **arguments: Unpack[PackArguments]
    ) -> None:
        """Packs a table for several trainings; train packs one by itself. The comment of cerebro.pack describes the
        arguments."""
        needed = {"source_table": source_table, "output_table": output_table, "target": target}
        self.rows(*call("pack", needed, arguments, PackArguments, more=None))

    def append(
        self, packed_table: str, source_table: str, *, divide: bool = True, related: Related | None = None
    ) -> None:
        """Adds rows that arrived later to a packed table. ``divide``: some of them are for validation, as before."""
        given = (packed_table, source_table, divide, as_json(related))
        self.rows("SELECT cerebro.append(%s, %s, %s, %s)", given)

    def make_task(
        self,
        entity_table: str,
        event_table: str,
        target: str,
        output_table: str,
        horizon: str | timedelta,
        every: str | timedelta,
        **arguments: Unpack[TaskArguments],
    ) -> int:
        """Makes a table to train on, of what will happen to entities by their events, and returns its number of rows.
        The comment of cerebro.make_task describes the arguments."""
        needed = {"entity_table": entity_table, "event_table": event_table, "target": target,
                  "output_table": output_table, "horizon": horizon, "every": every}  # fmt: skip
        return self.rows(*call("make_task", needed, arguments, TaskArguments, more=None))[0][0]

    def add_frame(self, frame: Frame, table: str) -> int:
        """Makes a table of the rows of a pandas.DataFrame, without its index, and returns how many there are."""
        with self.transaction() as transaction:
            frames.load(transaction.cursor, frame, sql.SQL(Name.parse(table).quoted), temporary=False)
        return len(frame)

    # --- look at runs ------------------------------------------------------------------------------

    def watch(self, run: AnyRun) -> RunProgress:
        """Shows the progress until the run has ended, and returns it: a drawing that changes in a notebook and on a
        terminal, else a line of text every few seconds. Ctrl-C stops watching, not the run."""
        return notebooks.watch(self, number_of(run))

    def _picture(self, run: AnyRun) -> str:
        return notebooks.picture(self, run)

    def report(
        self,
        runs: AnyRun | Sequence[AnyRun],
        path: str | Path = "report.html",
        replace: bool = False,
        *,
        examples: bool = True,
    ) -> Path:
        """Writes one HTML file about a model and its run, or about several beside each other, and returns its path.

        The file needs no network and no server. ``replace``: a file that exists is written over. ``examples``: whether
        it has example rows and the values of categories.
        """
        given = runs if isinstance(runs, Sequence) else [runs]
        return report.write(self.engine, [self.run(one) for one in given], Path(path), replace, examples)

    def track(
        self,
        runs: AnyRun | Sequence[AnyRun],
        *,
        tensorboard: str | Path | None = None,
        mlflow: str | None = None,
        optuna: str | Path | None = None,
        to: Mapping[str, str] | None = None,
        experiment: str = trackers.EXPERIMENT,
    ) -> int:
        """Writes runs for other tools, and returns how many models were left out: those of folds and of groups. A later
        call adds what is new.

        ``tensorboard``: a folder for event files. ``mlflow``: the URI of a tracking server. ``optuna``: a SQLite file
        for optuna-dashboard. ``to``: trackers of other packages, by name, with the place that each takes.
        """
        given = runs if isinstance(runs, Sequence) else [runs]
        named = {"tensorboard": tensorboard, "optuna": optuna, "mlflow": mlflow, **(to or {})}
        places = {name: str(place) for name, place in named.items() if place is not None}
        return trackers.track(self.engine, [self.run(one) for one in given], places, experiment)

    # --- trained models ----------------------------------------------------------------------------

    def model(self, run_or_table: AnyRun | str, configuration: int | None = None, group: str | None = None) -> Any:
        """The trained Keras model of one configuration, from the model table of a run or from a named table.

        A registered model can be named, too: ``model("churn@production")``. Without a configuration it is the best one.
        Of a table with models of groups, it is the model on all rows, or that of ``group``, which is a ``group_value``
        or a ``group_key`` of the table ``…_groups``.
        """
        table = run_or_table if isinstance(run_or_table, str) else self._model_table_of(run_or_table)
        return keras_models.load(self, table, configuration, group)

    def _model_table_of(self, run: AnyRun) -> str:
        """The model table of a run of this user's.  Another user's log may name a table that runs code of that user."""
        found = self.run(run)
        ((me,),) = self.rows("SELECT current_user::text")
        if found.owner != me:
            raise ClientError(
                f"Run {found.run} belongs to {found.owner}, so the table that it names is not read.",
                f"Name the table yourself: cerebro.model('{found.model_table}')",
            )
        return found.model_table

    def export(
        self,
        model_table: str,
        file: str | Path,
        configuration: int | None = None,
        sample: str | None = None,
        *,
        group: str | None = None,
        scorer: bool = False,
        replace: bool = False,
        tolerance: float | None = None,
    ) -> Exported:
        """Writes a trained model into a file and compares the predictions of the file. The ending says the format:
        docs/production.md#export describes them. An error if the predictions differ by more than rounding explains.

        ``group``: the model of this group, as in ``model``. ``sample``: a query for the rows to compare on. Without it,
        rows of the table that was trained on if it is yours, else drawn inputs.
        ``scorer``: also write ``cerebro_scorer.py`` beside it. ``replace``: write over files that exist.
        ``tolerance``: the largest difference that is allowed, instead of that of the format.
        """
        writers, file = architectures.model_files(), os.fspath(file)
        more = {"group": group, "with_scorer": scorer, "replace": replace, "tolerance": tolerance}
        return writers.export(self, model_table, file, configuration, sample, **more)

    def import_model(self, file: str | Path, name: str) -> str:
        """Brings a file in, and says what was made. Of a ``.cerebro`` archive ``name`` is the model table that is
        made; of ``.keras`` and ``.safetensors`` it is an architecture that training can start from."""
        file = os.fspath(file)
        if file.lower().endswith(archives.ENDING):
            archive = archives.bring_in(self, Path(file), name)
            return f"{name} has configuration {archive.configuration}, {archive.size:,} bytes of weights"
        return self.add_architecture(name, Path(file), description=f"from {Path(file).name}"[:200])

    # --- images ------------------------------------------------------------------------------------

    def add_images(
        self, table: str, source: str | Path, shape: Sequence[int], *, column: str | None = None, crop: bool = False
    ) -> int:
        """Makes a table of images for ``cerebro.pack``, with the pixels of each image in a column of bytes, and returns
        the number of rows. The files are decoded here, which needs the package Pillow. If one of them cannot be
        decoded, no table is made.

        ``source``: a folder. The table has the columns ``id``, ``file``, ``image``, and ``label``, the name of the
        folder within it, if there are such folders. With ``column``, a table, a view or a query with files of images in
        this column of type ``bytea``. The table has the columns of the source, and pixels in the place of the files.
        ``shape``: height, width and channels (1, 3 or 4). Each image is stretched to this size; with ``crop`` it is cut
        to the proportions first.
        """
        return images.add(self, table, source, shape, column, crop)

    # --- accelerometers ----------------------------------------------------------------------------

    def add_accelerometer(
        self,
        table: str,
        files: str | Path | Sequence[str | Path],
        *,
        subject: str | None = None,
        date_format: str | None = None,
    ) -> list[Loaded]:
        """Loads files of ActiGraph's accelerometers: raw samples as CSV of ActiLife (``.csv``, ``.csv.gz``), with or
        without times, and ``.gt3x``. The table gets a row for each sample: ``subject``, ``at`` (local time), ``x``,
        ``y`` and ``z`` in g. It is made if there is none of this name; a table of yours with such columns gets more
        rows. Returns for each file its subject, number of rows and samples per second.

        Each file is loaded in a transaction of its own, a piece at a time, so that its size does not matter. An error
        names the file and the line; earlier files stay. A file that was loaded before is refused. Idle sleep, which a
        ``.gt3x`` file does not record, has no rows.

        ``subject``: who was recorded. By default the subject name in a ``.gt3x`` file, or else the name of the file.
        ``date_format``: of dates in CSV files, such as ``d/M/yyyy``, in place of the one that the header states.
        """
        given = [files] if isinstance(files, (str, Path)) else files
        return loading.add(self, table, given, subject, date_format)

    # --- architectures -----------------------------------------------------------------------------

    def add_architecture(
        self,
        name: str,
        architecture: Any,
        initial_weights: str | Path | None = None,
        *,
        by: Literal["names", "order"] = "names",
        description: str | None = None,
    ) -> str:
        """Adds an architecture that configurations can name, with weights of any size that training starts from, and
        says what was added. If anything is refused, nothing is added.

        ``architecture``: a Keras model, whose frozen layers stay frozen; a ``.keras`` file; a ``.safetensors`` file
        with an architecture in its metadata; or the JSON of an architecture, as a text, a dictionary or a ``.json``
        file, which has no weights.
        ``initial_weights``: a ``.safetensors`` file whose tensors are taken instead of the model's weights. All weights
        of the model must be in it. ``by``: ``names``, the tensors have the names of the weights (``path``); ``order``,
        they are in the order of ``model.get_weights()``.
        """
        return architectures.add(self, name, architecture, initial_weights, by, description)

    def drop_architecture(self, name: str) -> None:
        """Removes an architecture that you have added. Runs that were made with it keep what they need of it."""
        self.rows("SELECT cerebro.drop_architecture(%s)", (name,))
