"""Raw results of measurements, kept as JSON in tools/bench/results: what tables are made from. Standard library only.

A file has one set of rows: one commit, one machine. `schema` is 1; `name`, `commit`, `machine` and `command` are text. A row is one run of a program:

  id       "group/variant/round", unique in the file
  group, variant, round
  asked    what was asked for, as text: a row that was asked for something else is run again
  command  what was run, as runs.as_typed says it
  date     UTC, ISO 8601
  seconds  of the whole run
  result   what it said, every sample of every time included; or
  error    why there is no result, in one line
"""
import datetime, json, os, pathlib, subprocess

SCHEMA = 1
REFUSED = "this program refuses the configuration"  # how the error begins of a row whose option the program does not know
FOLDER = pathlib.Path(__file__).resolve().parent / "results"
OF_FILE = {"schema": int, "name": str, "commit": str, "machine": str, "command": str, "rows": list}
OF_ROW = {"id": str, "group": str, "variant": str, "round": int, "asked": str, "command": str, "date": str, "seconds": (int, float)}


def check(data, path):
    """`data`, or ValueError naming file, key and what is allowed."""
    def need(place, of, kinds):
        for key, kind in kinds.items():
            if not isinstance(of.get(key), kind):
                allowed = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
                raise ValueError(f"{path}: {place}{key} is {of.get(key)!r}; {allowed} is allowed")
    need("", data, OF_FILE)
    if data["schema"] != SCHEMA:
        raise ValueError(f"{path}: schema is {data['schema']}; {SCHEMA} is allowed")
    seen = set()
    for number, row in enumerate(data["rows"]):
        need(f"rows[{number}].", row, OF_ROW)
        if row["id"] in seen:
            raise ValueError(f"{path}: rows[{number}].id is {row['id']!r} a second time; each row has its own")
        seen.add(row["id"])
        if ("result" in row) == ("error" in row):
            raise ValueError(f"{path}: rows[{number}] needs either a result or an error")
    return data


def load(path):
    with open(path, encoding="utf-8") as file:
        return check(json.load(file), path)


def commit_of(binary):
    """Of a package, its VERSION; of a build here, what git describes."""
    version = pathlib.Path(binary).resolve().parent.parent / "VERSION"
    if version.exists():
        return version.read_text().split()[1]
    try:
        return subprocess.run(["git", "-C", str(FOLDER.parent), "describe", "--always", "--dirty"], capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Results:
    """A file that grows row by row and is whole after each. Rows of another commit or machine are not mixed with new ones: then it begins anew, as it does
    where the commit does not say what was run (a tree with changes, or no git)."""

    def __init__(self, path, name, commit, machine, command, earlier=None):
        self.path = pathlib.Path(path)
        self.data = dict(schema=SCHEMA, name=name, commit=commit, machine=machine, command=command, rows=[])
        vague = commit.endswith("-dirty") or commit == "unknown"
        for old in () if vague else (self.path, earlier):
            if old is not None and pathlib.Path(old).exists():
                found = load(old)
                if (found["name"], found["commit"], found["machine"]) == (name, commit, machine):
                    self.data["rows"] = found["rows"]
                    break
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def has(self, row_id, asked):
        """Whether the row is there. One that was asked for something else goes, and one that failed: a refusal would be the same again, another failure need not."""
        def stays(row):
            return row["asked"] == asked and row.get("error", REFUSED).startswith(REFUSED)
        self.data["rows"] = [row for row in self.data["rows"] if row["id"] != row_id or stays(row)]
        return any(row["id"] == row_id for row in self.data["rows"])

    def seconds_of(self, group, variant=None):
        """The longest of the variant's rows so far, else of the group's: a peer that compiles takes several times as long as ours. None: there is none."""
        rows = [row for row in self.data["rows"] if row["group"] == group]
        return max((row["seconds"] for row in [row for row in rows if row["variant"] == variant] or rows), default=None)

    def add(self, group, variant, round_, asked, command, seconds, result=None, error=None):
        row = dict(id=f"{group}/{variant}/{round_}", group=group, variant=variant, round=round_, asked=asked, command=command,
                   date=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), seconds=round(seconds, 1))
        row.update(dict(error=error) if error is not None else dict(result=result))
        self.data["rows"].append(row)
        self.write()

    def write(self):
        check(self.data, self.path)
        part = self.path.with_name(self.path.name + ".part")
        # A line per row: a diff of two files shows which rows are new.
        head = {key: value for key, value in self.data.items() if key != "rows"}
        lines = ",\n".join("  " + json.dumps(row) for row in self.data["rows"])
        part.write_text(json.dumps(head)[:-1] + ', "rows": [\n' + lines + "\n]}\n", encoding="utf-8")
        os.replace(part, self.path)


def quantile(values, q):
    """Nearest rank, as `millrace bench` takes it."""
    return sorted(values)[int(q * (len(values) - 1) + 0.5)]


def spread(values):
    """(median, 10th percentile, 90th percentile)"""
    return tuple(quantile(values, q) for q in (0.5, 0.1, 0.9))


def verdict(samples, base):
    """What may be said of times beside those of the baseline: nothing while the intervals from p10 to p90 touch."""
    median, low, high = spread(samples)
    base_median, base_low, base_high = spread(base)
    if high < base_low:
        return f"{base_median / median:.3f}x faster"
    if low > base_high:
        return f"{median / base_median:.3f}x slower"
    return "within spread"
