"""The result folder: every path in it, and how rows get into it and out again.

    config.yaml  plan.json  provenance.json      what was asked, written once
    result.json                                  marks the folder as a result, with its schema version
    schedule/round-NNNN.json                     the arms that are open in a round
    parts/TRIAL_ID.parquet                       one row each, as trials finish
    parts/damaged/                               parts that could not be read, set aside
    trials.parquet  arms.parquet                 all rows, and the counts
    reference/reference.json  logits.parquet     the reference's logits, or why there are none
    reference/recordings.parquet                 the trials that they come from; these count for nothing else
    reference/trials.parquet                     rows of another result, where that is the reference
    lock                                         held by the run that writes here

Everything is written under a temporary name, flushed to disk and renamed, so that a kill at any moment leaves
old content or new content and nothing between. No absolute path is stored: a folder can be moved and copied.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..matrix.outcome import Outcome
from ..matrix.schema import SCHEMA_VERSION, arms_schema
from .durable import TEMPORARY, StoreError, exclusive_lock, explained, write_durably
from .rows import SCHEMA, conform, row_table, sorted_rows

__all__ = ["DamagedPart", "ResultFolder", "StoreError", "newest_result", "stored_results"]

_log = logging.getLogger(__name__)

_FORMAT = "isomatrix result"
_MERGE_ABOVE = 100
"""Parts: opening one takes about as long as reading a hundred rows of a merged file."""
_TRIAL_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+,@-]{0,199}")


@dataclass(frozen=True)
class DamagedPart:
    """A part that cannot be read. `path` is where it lies now."""

    path: Path
    why: str


DamageCallback = Callable[[DamagedPart], None]


class ResultFolder:
    """One result on disk. Make one with `create`, `open` or `open_or_create`.

    Readers need no lock. A run takes `lock()` once; the jobs that it starts (one per round, maybe in other
    processes) write their parts under it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.plan_file = path / "plan.json"
        self.provenance_file = path / "provenance.json"
        self.trials_file = path / "trials.parquet"
        self.arms_file = path / "arms.parquet"
        self.parts_folder = path / "parts"
        self.damaged_folder = path / "parts" / "damaged"
        self.schedule_folder = path / "schedule"
        self.reference_folder = path / "reference"
        self.reference_file = self.reference_folder / "reference.json"
        self.reference_logits_file = self.reference_folder / "logits.parquet"
        self.recordings_file = self.reference_folder / "recordings.parquet"
        self.reference_rows_file = self.reference_folder / "trials.parquet"
        self.lock_file = path / "lock"
        self._marker_file = path / "result.json"
        self._locked = False

    # Opening

    @classmethod
    def create(cls, path: Path) -> ResultFolder:
        """Make a new result folder. Raises `StoreError` if something else is there, or it is not writable."""
        folder = cls(path)
        if folder._marker_file.exists():
            raise StoreError(f"{path} holds a result already; choose another run.name, or resume that one")
        ours = {entry.name for entry in vars(folder).values() if isinstance(entry, Path)}
        with explained(path):
            if path.is_dir():
                foreign = sorted(
                    entry.name
                    for entry in path.iterdir()
                    if entry.name not in ours and not entry.name.endswith(TEMPORARY)
                )
                if foreign:
                    raise StoreError(f"{path} is no result folder and not empty (it holds {foreign[0]})")
            for sub in (folder.parts_folder, folder.schedule_folder, folder.reference_folder):
                sub.mkdir(parents=True, exist_ok=True)
        # The marker comes last: a folder without it is an unfinished creation and may be created again.
        marker = {"format": _FORMAT, "schema_version": SCHEMA_VERSION}
        folder._write(folder._marker_file, json.dumps(marker).encode() + b"\n")
        return folder

    @classmethod
    def open(cls, path: Path) -> ResultFolder:
        """An existing result. Raises `StoreError` if there is none, or a newer version wrote it."""
        folder = cls(path)
        if not path.is_dir():
            raise StoreError(f"no result at {path}; `isomatrix run` makes one")
        try:
            marker = json.loads(folder._marker_file.read_text(encoding="utf-8"))
            version = marker["schema_version"] if marker["format"] == _FORMAT else None
        except FileNotFoundError:
            raise StoreError(f"{path} is not a result folder: it has no {folder._marker_file.name}") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{folder._marker_file} cannot be read: {error}") from error
        if not isinstance(version, int):
            raise StoreError(f"{path} is not a result folder: {folder._marker_file.name} says something else")
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{path} was written with schema version {version}; this isomatrix reads up to "
                f"{SCHEMA_VERSION}, so update it"
            )
        return folder

    @classmethod
    def open_or_create(cls, path: Path) -> ResultFolder:
        """The result at `path`, made if there is none."""
        return cls.open(path) if cls(path)._marker_file.exists() else cls.create(path)

    # The lock

    @contextlib.contextmanager
    def lock(self, on_damage: DamageCallback | None = None) -> Iterator[None]:
        """Hold the folder for writing; the OS gives it back when this process dies, however it dies.

        Raises `StoreError` naming the holder. On the way in, leftovers of a killed run are removed and parts
        that cannot be read are set aside, so that `finished_trials` does not count them.
        """
        with exclusive_lock(self.lock_file):
            self._locked = True
            try:
                self._remove_leftovers()
                for part in self._parts():
                    why = _footer_fault(part)
                    if why is not None:
                        self._report(part, why, on_damage)
                yield
            finally:
                self._locked = False

    def _remove_leftovers(self) -> None:
        for folder in (self.path, self.parts_folder, self.schedule_folder, self.reference_folder):
            for leftover in folder.glob(f".*{TEMPORARY}"):
                leftover.unlink(missing_ok=True)

    # Small files

    def write_config(self, text: str) -> None:
        """Store the composed configuration, YAML."""
        self._write(self.config_file, text.encode())

    def read_config(self) -> str:
        """The composed configuration, YAML."""
        return self._read(self.config_file)

    def write_plan(self, text: str) -> None:
        """Store the plan, JSON."""
        self._write(self.plan_file, text.encode())

    def read_plan(self) -> str:
        """The plan, JSON."""
        return self._read(self.plan_file)

    def write_provenance(self, text: str) -> None:
        """Store versions, machine and command line, JSON."""
        self._write(self.provenance_file, text.encode())

    def read_provenance(self) -> str:
        """Versions, machine and command line, JSON."""
        return self._read(self.provenance_file)

    def write_schedule(self, round_index: int, open_arms: Sequence[str]) -> None:
        """Store which arms are open in a round."""
        self._write(self._schedule_file(round_index), json.dumps(list(open_arms), ensure_ascii=False).encode())

    def read_schedule(self, round_index: int) -> list[str] | None:
        """The arms that are open in a round; None where nothing was scheduled, which means all."""
        file = self._schedule_file(round_index)
        if not file.exists():
            return None
        try:
            return [str(arm) for arm in json.loads(self._read(file))]
        except (ValueError, TypeError) as error:
            raise StoreError(f"{file} is not a list of arms: {error}") from error

    def _schedule_file(self, round_index: int) -> Path:
        return self.schedule_folder / f"round-{round_index:04d}.json"

    # The reference

    def write_reference(self, text: str) -> None:
        """Store what is known of the reference's logits, JSON; written after the files that it speaks of."""
        self.reference_folder.mkdir(exist_ok=True)
        self._write(self.reference_file, text.encode())

    def read_reference(self) -> str | None:
        """What is known of the reference's logits, JSON; None where nothing was decided yet."""
        return self._read(self.reference_file) if self.reference_file.exists() else None

    def write_reference_logits(self, table: pa.Table) -> None:
        """Store logits rows. Splitting floats by byte compresses them a little better."""
        self.reference_folder.mkdir(exist_ok=True)
        split = {"use_dictionary": False, "use_byte_stream_split": ["logits.list.element"]}
        self._write_table(self.reference_logits_file, table, **split)

    def read_reference_logits(self) -> pa.Table:
        """The logits rows of the reference."""
        try:
            return pq.read_table(self.reference_logits_file)
        except FileNotFoundError:
            raise StoreError(f"{self.path} has no {self.reference_logits_file.name} of its reference") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"{self.reference_logits_file} cannot be read; restore it from a copy: {error}") from error

    def write_recordings(self, rows: pa.Table) -> None:
        """Store the trials that the reference's logits come from."""
        self.reference_folder.mkdir(exist_ok=True)
        self._write_table(self.recordings_file, rows)

    def write_reference_rows(self, rows: pa.Table) -> None:
        """Store rows of another result whose consensus is the reference here."""
        self.reference_folder.mkdir(exist_ok=True)
        self._write_table(self.reference_rows_file, rows)

    def read_reference_rows(self) -> pa.Table | None:
        """Rows of another result whose consensus is the reference here; None where there are none."""
        if not self.reference_rows_file.exists():
            return None
        return self._read_table(self.reference_rows_file, None, SCHEMA)

    # Rows

    def write_part(self, row: Mapping[str, Any]) -> Path:
        """Store the row of one finished trial; it is on disk when this returns.

        Absent columns become null. Raises `StoreError` for an unknown column, a value that does not fit its
        column exactly, an interrupted trial, or a full or read-only disk; then no part is left behind.
        """
        trial_id = row.get("trial_id")
        if not isinstance(trial_id, str) or not _TRIAL_ID.fullmatch(trial_id):
            raise StoreError(f"trial_id: {trial_id!r} cannot name a file")
        if row.get("outcome") == Outcome.INTERRUPTED.value:
            raise StoreError(f"trial {trial_id} was interrupted by the user and is no finished trial")
        try:
            table = row_table({"schema_version": SCHEMA_VERSION, **row})
        except ValueError as error:
            raise StoreError(f"trial {trial_id}: {error}") from error
        target = self._part_file(trial_id)
        # Statistics and dictionaries help to skip rows; a part has one.
        self._write_table(target, table, use_dictionary=False, write_statistics=False)
        return target

    def finished_trials(self) -> set[str]:
        """Ids of the trials that have a row, from file names and one column: no part is opened."""
        finished = {part.stem for part in self._parts()}
        if self.trials_file.exists():
            finished.update(self._read_compacted(["trial_id"]).column("trial_id").to_pylist())
        return finished

    def read_trials(
        self,
        columns: Sequence[str] | None = None,
        *,
        on_damage: DamageCallback | None = None,
    ) -> pa.Table:
        """All rows, each trial once, ordered by round, position and id.

        Columns that the files lack (an older version wrote them) are null. A part that cannot be read is
        reported to `on_damage`, else to the log; the holder of the lock moves it to `parts/damaged/` too, and
        merges the parts into `trials.parquet` when there are many, so that looking at a long run after every
        round stays cheap. `columns` picks some columns, in the given order.
        """
        wanted = list(columns) if columns is not None else SCHEMA.names
        for name in wanted:
            if name not in SCHEMA.names:
                raise StoreError(f"trials have no column '{name}'")
        if self._locked and len(self._parts()) > _MERGE_ABOVE:
            self.compact(self._rows(SCHEMA.names, on_damage))
        needed = list(dict.fromkeys([*wanted, "trial_id", "round", "position"]))
        return self._rows(needed, on_damage).select(wanted)

    def _rows(self, needed: Sequence[str], on_damage: DamageCallback | None) -> pa.Table:
        tables = []
        for part in self._parts():
            table = self._read_part(part, needed, on_damage)
            if table is not None:
                tables.append(table)
        # Parts first: a part that the run removes meanwhile is in the compacted file that is read now. And a
        # trial can lie in both, after a kill in between; the compacted row wins, because it has its verdict.
        if self.trials_file.exists():
            compacted = self._read_compacted(needed)
            known = set(compacted.column("trial_id").to_pylist())
            tables = [compacted, *(table for table in tables if table["trial_id"][0].as_py() not in known)]
        picked = pa.schema([SCHEMA.field(name) for name in needed], metadata=SCHEMA.metadata)
        rows = pa.concat_tables(tables) if tables else picked.empty_table()
        return sorted_rows(rows)

    def compact(self, rows: pa.Table) -> None:
        """Write `rows` as `trials.parquet`, then remove the parts that it covers.

        Raises `StoreError` if a row that is stored already is missing in `rows`.
        """
        if rows.schema.names != SCHEMA.names:
            odd = sorted(set(rows.schema.names) ^ set(SCHEMA.names))
            raise StoreError(f"trials.parquet: the rows have other columns than the schema: {', '.join(odd)}")
        covered = set(rows.column("trial_id").to_pylist())
        if len(covered) != rows.num_rows:
            raise StoreError("trials.parquet: a trial appears twice")
        if self.trials_file.exists():
            lost = set(self._read_compacted(["trial_id"]).column("trial_id").to_pylist()) - covered
            if lost:
                raise StoreError(f"trials.parquet: {len(lost)} stored trials would be lost, {min(lost)} among them")
        self._write_table(self.trials_file, sorted_rows(rows.cast(SCHEMA)))
        for part in self._parts():
            if part.stem in covered:
                part.unlink(missing_ok=True)

    def write_arms(self, table: pa.Table) -> None:
        """Store the counts per arm."""
        try:
            self._write_table(self.arms_file, table.select(arms_schema().names).cast(arms_schema()))
        except (KeyError, pa.ArrowException) as error:
            raise StoreError(f"arms.parquet: the table does not fit the schema: {error}") from error

    def read_arms(self) -> pa.Table:
        """The counts per arm."""
        return self._read_table(self.arms_file, None, arms_schema())

    # Within

    def _parts(self) -> list[Path]:
        return sorted(part for part in self.parts_folder.glob("*.parquet") if not part.name.startswith("."))

    def _part_file(self, trial_id: str) -> Path:
        return self.parts_folder / f"{trial_id}.parquet"

    def _read_part(self, part: Path, columns: Sequence[str], on_damage: DamageCallback | None) -> pa.Table | None:
        try:
            table = conform(_read_columns(part, columns), SCHEMA, columns)
            ids = table.column("trial_id").to_pylist()
            if ids != [part.stem]:
                raise ValueError(f"it holds trials {ids} under the name of another")
        except FileNotFoundError:
            return None  # compacted by the run in the meantime
        except (OSError, ValueError, pa.ArrowException) as error:
            self._report(part, str(error), on_damage)
            return None
        return table

    def _report(self, part: Path, why: str, on_damage: DamageCallback | None) -> None:
        where = part
        if self._locked:
            where = self.damaged_folder / part.name
            with explained(where):
                self.damaged_folder.mkdir(exist_ok=True)
                part.replace(where)
        damaged = DamagedPart(where, " ".join(why.split()))
        if on_damage is not None:
            on_damage(damaged)
        else:
            _log.warning("%s cannot be read and does not count: %s", damaged.path, damaged.why)

    def _read_compacted(self, columns: Sequence[str]) -> pa.Table:
        return self._read_table(self.trials_file, columns, SCHEMA)

    def _read_table(self, file: Path, columns: Sequence[str] | None, schema: pa.Schema) -> pa.Table:
        names = list(columns) if columns is not None else schema.names
        try:
            return conform(_read_columns(file, names), schema, names)
        except FileNotFoundError:
            raise StoreError(f"{self.path} has no {file.name} yet") from None
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"{file} cannot be read; restore it from a copy: {error}") from error

    def _read(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise StoreError(f"{self.path} has no {file.name}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"{file} cannot be read: {error}") from error

    def _write(self, file: Path, data: bytes) -> None:
        write_durably(file, lambda stream: stream.write(data))

    def _write_table(self, file: Path, table: pa.Table, **options: Any) -> None:
        write_durably(file, lambda stream: pq.write_table(table, stream, compression="zstd", **options))


def newest_result(root: Path) -> ResultFolder:
    """The result below `root` that was written to last. Raises `StoreError` if there is none."""
    folders = stored_results(root)
    if not folders:
        raise StoreError(f"no result below {root}; `isomatrix run` makes one")
    return ResultFolder.open(folders[0].path)


def stored_results(root: Path) -> list[ResultFolder]:
    """All results below `root`, the one that was written to last first; not opened, so any of them may be damaged."""
    markers = root.glob("*/result.json") if root.is_dir() else iter(())
    folders = [ResultFolder(marker.parent) for marker in markers]
    return sorted(folders, key=lambda folder: (_written_ns(folder), folder.path.name), reverse=True)


def _written_ns(folder: ResultFolder) -> int:
    places = (folder.path, folder.parts_folder, folder.schedule_folder)
    return max(place.stat().st_mtime_ns for place in places if place.exists())


def _footer_fault(part: Path) -> str | None:
    try:
        pq.read_metadata(part)
    except (OSError, pa.ArrowException) as error:
        return str(error)
    return None


def _read_columns(file: Path, columns: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(file) as parquet:
        if len(columns) == len(SCHEMA):
            return parquet.read(use_threads=False)  # asking for the names costs more than a column too many
        present = set(parquet.schema_arrow.names)
        return parquet.read(columns=[name for name in columns if name in present], use_threads=False)
