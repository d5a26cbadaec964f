"""What a log of compute-sanitizer says: reports by the kernel that they are about, ours and libraries' apart.

    sanitizer_log.py LOG... --program-log FILE --exit-code N [--expect-report]

prints one line of JSON: verdict ("pass", "FAIL" or "time"), why, and the reports. Reports about a kernel of namespace millrace are ours; about
cuDNN's, cuBLAS's, CUTLASS's and NCCL's, theirs; failed API calls are listed apart, since the programs check each return code and some tests
provoke errors. Anything else counts as ours. A log without the summary at its end, or whose reports were cut, is no pass.

--expect-report: of a program with a planted fault: pass when there is a report of ours, and nothing else.
"""
import argparse, collections, json, re, sys

LIBRARIES = re.compile(r"cudnn|cublas|cutlass|nvjet|xmma|ncclDev|ncclKernel|splitKreduce|gemvN|gemv2|sm\d+_x|\bcask\b", re.IGNORECASE)
NO_REPORT = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY|Target application|This tool is deprecated|LD_PRELOAD")
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
TIMED_OUT = (124, 137)


def text_of(path):
    with open(path, errors="replace") as file:
        return file.read()


def reports_of(text):
    """The reports of one log, each as its lines without host frames, and what its summary counts (None: it has none)."""
    reports, count = [], None
    for line in text.splitlines():
        if not line.startswith("========="):
            continue
        body = line[9:]
        found = SUMMARY.search(body)
        if found:
            count = int(found.group(1) or found.group(2))
        elif NO_REPORT.search(body) or not body.strip():
            continue
        elif re.match(r" \S", body):
            reports.append([body.strip()])
        elif reports and "Host Frame" not in body and "Saved host backtrace" not in body:
            reports[-1].append(body.strip())
    return reports, count


def owner_of(report):
    """("ours" | "library" | "api", what it is about)."""
    about = " ".join(report)
    if report[0].startswith("Program hit"):
        return "api", report[0][:120]
    kernel = next((line for line in report if re.search(r"[+:]0x[0-9a-f]+", line) and " at " in " " + line), report[0])
    kernel = re.sub(r"[+:]0x[0-9a-f]+.*", "", kernel)
    what = (report[0][:80] + ": " + kernel if kernel not in report[0] else kernel)[:240]
    if "millrace" in about or not LIBRARIES.search(about):
        return "ours", what
    return "library", what


def read(logs, program_log, exit_code, expect_report):
    owners = {"ours": collections.Counter(), "library": collections.Counter(), "api": collections.Counter()}
    why = []
    for text in logs:
        reports, count = reports_of(text)
        if count is None:
            why.append("the sanitizer's log has no summary")
        elif count > 0 and not reports:
            why.append("%d errors were counted, and none was printed" % count)
        if re.search(r"\d+ (error|hazard)s? (was|were) not printed", text):
            why.append("not all reports were printed")
        for report in reports:
            owner, what = owner_of(report)
            owners[owner][what] += 1
    if not logs:
        why.append("no log")
    ours = sum(owners["ours"].values())
    ran = re.findall(r"All tests passed \((\d+) assertions? in (\d+) test cases?\)", program_log)
    if expect_report:
        why = [] if ours else ["the planted fault was not reported as ours"]
    else:
        if ours:
            why.append("%d reports about our kernels" % ours)
        if exit_code != 0:
            why.append("exit code %d" % exit_code)
        if len(ran) != len(logs):
            why.append("of %d ranks %d say that all tests passed" % (len(logs), len(ran)))
    verdict = "pass" if not why else "time" if exit_code in TIMED_OUT and not ours else "FAIL"
    return {"verdict": verdict, "why": "; ".join(why), "cases": sum(int(cases) for _, cases in ran), "ours": owners["ours"], "library": owners["library"],
            "api": owners["api"]}


def table(rows):
    lines = ["| tool | program | cases | s | ours | libraries | API | verdict |", "|---|---|--:|--:|--:|--:|--:|---|"]
    for row in rows:
        counts = [sum(row[owner].values()) for owner in ("ours", "library", "api")]
        lines.append("| %s | %s | %d | %d | %d | %d | %d | %s |" % (row["tool"], row["program"], row["cases"], row["seconds"], *counts,
                                                                  row["verdict"] + (": " + row["why"] if row["why"] else "")))
    return "\n".join(lines)


def main():
    if sys.argv[1:2] == ["--table"]:
        print(table([json.loads(text_of(path)) for path in sys.argv[2:]]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*")
    parser.add_argument("--program-log", required=True)
    parser.add_argument("--exit-code", type=int, required=True)
    parser.add_argument("--expect-report", action="store_true")
    parser.add_argument("--tool", default="")
    parser.add_argument("--program", default="")
    parser.add_argument("--seconds", type=int, default=0)
    a = parser.parse_args()
    row = read([text_of(path) for path in a.logs], text_of(a.program_log), a.exit_code, a.expect_report)
    print(json.dumps({"tool": a.tool, "program": a.program, "seconds": a.seconds, **row}))


if __name__ == "__main__":
    main()
