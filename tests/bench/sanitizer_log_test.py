"""sanitizer_log.py on logs of every kind, and sanitize_gpu.sh with a compute-sanitizer that is told what to find."""
import json, os, stat, subprocess, sys, tempfile, unittest

BENCH = os.path.abspath("tools/bench")
sys.path.insert(0, BENCH)
import sanitizer_log

HEAD = "========= COMPUTE-SANITIZER\n"
END = "========= ERROR SUMMARY: %d errors\n"
PASSED = "All tests passed (7 assertions in 2 test cases)\n"
OURS = """========= Invalid __global__ write of size 4 bytes
=========     at void millrace::cuda::<unnamed>::NormKernel<float>(millrace::NormArgs)+0x160
=========     by thread (63,0,0) in block (0,0,0)
=========     Address 0x7f671ac00001 is out of bounds
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: main [0x1] in program
=========
"""
CUDNN = """========= Error: Race reported between Write access at cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma+0x5d0
=========     and Read access at cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma+0x7d0 [16 hazards]
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: millrace::cuda::CudnnAttention(millrace::Stream&) [0x1] in program
=========
"""
API = """========= Program hit cudaErrorPeerAccessAlreadyEnabled (error 704) due to "peer access is already enabled" on CUDA API call to cudaDeviceEnablePeerAccess.
=========         Host Frame: millrace::EnablePeer() [0x1] in program
=========
"""
UNKNOWN = "========= Fatal UVM GPU fault of type invalid pde due to invalid address\n=========     during write access to address 0x10\n=========\n"


def read(log, exit_code=0, program=PASSED, expect=False):
    return sanitizer_log.read([log] if isinstance(log, str) else log, program, exit_code, expect)


class Logs(unittest.TestCase):
    def test_nothing_found(self):
        row = read(HEAD + END % 0)
        self.assertEqual((row["verdict"], row["cases"], row["why"]), ("pass", 2, ""))
        self.assertEqual(read(HEAD + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n")["verdict"], "pass")

    def test_ours_fails_whatever_else_there_is(self):
        row = read(HEAD + CUDNN + OURS + OURS + END % 3)
        self.assertEqual(row["verdict"], "FAIL")
        self.assertEqual(list(row["ours"].values()), [2])
        self.assertIn("NormKernel", list(row["ours"])[0])
        self.assertEqual(sum(row["library"].values()), 1)

    def test_a_library_that_we_called_is_not_ours(self):
        row = read(HEAD + CUDNN + END % 1)
        self.assertEqual((row["verdict"], sum(row["library"].values())), ("pass", 1))

    def test_an_expected_error_of_the_api_is_listed(self):
        row = read(HEAD + API + END % 1)
        self.assertEqual((row["verdict"], sum(row["api"].values())), ("pass", 1))

    def test_what_nobody_can_be_blamed_for_is_ours(self):
        self.assertEqual(read(HEAD + UNKNOWN + END % 1)["verdict"], "FAIL")

    def test_a_log_without_its_end(self):
        self.assertEqual(read(HEAD)["verdict"], "FAIL")
        self.assertEqual(read(HEAD, exit_code=124, program="")["verdict"], "time")
        self.assertEqual(read(HEAD + OURS, exit_code=124, program="")["verdict"], "FAIL")
        self.assertEqual(read([])["verdict"], "FAIL")

    def test_reports_that_were_not_printed(self):
        self.assertIn("none was printed", read(HEAD + END % 4)["why"])
        cut = HEAD + CUDNN + "========= ERROR SUMMARY: 12 errors\n========= ERROR SUMMARY: 11 errors were not printed. Use --print-limit\n"
        self.assertEqual(read(cut)["verdict"], "FAIL")

    def test_the_program_must_have_passed_on_every_rank(self):
        self.assertEqual(read(HEAD + END % 0, program="No tests ran\n")["verdict"], "FAIL")
        self.assertEqual(read(HEAD + END % 0, exit_code=1)["verdict"], "FAIL")
        self.assertEqual(read([HEAD + END % 0] * 2)["verdict"], "FAIL")
        self.assertEqual(read([HEAD + END % 0] * 2, program=PASSED * 2)["cases"], 4)

    def test_a_planted_fault(self):
        self.assertEqual(read(HEAD + OURS + END % 1, program="", expect=True)["verdict"], "pass")
        self.assertEqual(read(HEAD + CUDNN + END % 1, program="", expect=True)["verdict"], "FAIL")
        self.assertEqual(read(HEAD + END % 0, program="", expect=True)["verdict"], "FAIL")


SANITIZER = """#!/bin/bash
# Writes the log that FINDS/TOOL.PROGRAM holds, else one without reports, and runs the program.
while (($#)); do
  case $1 in
    --tool) tool=$2; shift ;;
    --log-file) log=${2/\\%p/$$}; shift ;;
    --print-limit | --kernel-name) shift ;;
    *) break ;;
  esac
  shift
done
finds=$FINDS/$tool.$(basename "$1")
if [[ -e $finds ]]; then cat "$finds" >"$log"; else printf '%s' "$NOTHING" >"$log"; fi
echo "$tool $(basename "$1")" >>"$FINDS/ran"
"$@"
"""
MPIRUN = """#!/bin/bash
while [[ $1 != *compute-sanitizer ]]; do shift; done
"$@"; "$@"
"""
# Catch2 exits with the number of names that it lists. What each process was asked is kept, and one case can be told to fail.
PROGRAM = """#!/bin/bash
if [[ $* == *--list-test-names-only* ]]; then printf 'one case\\nanother, with a comma\\n'; exit 2; fi
echo "$*" >>"$FINDS/asked"
[[ ! -e $FINDS/fails || $* != *"$(cat "$FINDS/fails")" ]] || { echo 'test cases: 1 | 1 failed'; exit 1; }
echo 'All tests passed (7 assertions in 2 test cases)'
"""


class Script(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root, self.finds = self.folder.name, os.path.join(self.folder.name, "finds")
        for name in ("bin", "libexec/tests", "path", "finds"):
            os.makedirs(os.path.join(self.root, name))
        self.write("bin/with-libs", "#!/bin/bash\nexec \"$@\"\n")
        self.write("path/compute-sanitizer", SANITIZER)
        self.write("path/mpirun", MPIRUN)
        for name in self.run_script("--list")[1].split():
            self.write("libexec/tests/" + name.split(".")[1], PROGRAM)
        for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
            self.write("finds/%s.planted_faults" % tool, HEAD + OURS + END % 1)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = os.path.join(self.root, name)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def run_script(self, *arguments):
        environment = dict(os.environ, PATH=os.path.join(self.root, "path") + ":" + os.environ["PATH"], FINDS=self.finds, NOTHING=HEAD + END % 0)
        done = subprocess.run(["bash", os.path.join(BENCH, "sanitize_gpu.sh"), "out", *arguments], cwd=self.root, env=environment, capture_output=True,
                              text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    def ran(self):
        path = os.path.join(self.finds, "ran")
        if not os.path.exists(path):
            return []
        with open(path) as file:
            lines = file.read().splitlines()
        os.remove(path)
        return lines

    def test_all_rows_pass_and_are_not_run_again(self):
        code, out, err = self.run_script()
        self.assertEqual(code, 0, out + err)
        self.assertEqual(out.count("| pass |"), 71)  # 4 planted, 4 tools x 17, less matmul under racecheck
        ran = self.ran()
        self.assertIn("peer_test", "".join(ran))
        self.assertEqual([ran.count(f"{tool} contract_test") for tool in ("memcheck", "racecheck")], [1, 2])
        self.assertEqual(self.run_script()[0], 0)
        self.assertEqual(self.ran(), [])

    def test_a_report_fails_its_row_and_the_row_is_run_again(self):
        self.write("finds/racecheck.rows_test", HEAD + OURS + END % 1)
        code, out, _ = self.run_script("--only", "rows_test|planted")
        self.assertEqual(code, 1)
        self.assertIn("| racecheck | rows_test | 2 |", out)
        self.assertEqual(out.count("FAIL:"), 1)
        self.ran()
        os.remove(os.path.join(self.finds, "racecheck.rows_test"))
        self.assertEqual(self.run_script("--only", "rows_test|planted")[0], 0)
        self.assertEqual(self.ran(), ["racecheck rows_test"])

    def test_a_row_of_a_process_per_case(self):
        def row():
            code, out, err = self.run_script("--only", "racecheck.contract_test", "--jobs", "2")
            return code, next(line for line in out.splitlines() if line.startswith("| racecheck | contract_test |"))
        code, line = row()
        self.assertEqual((code, line.split("|")[3].strip()), (0, "4"), line)  # two of each process
        with open(os.path.join(self.finds, "asked")) as file:
            self.assertEqual(sorted(file.read().splitlines()), ["--use-colour no another\\, with a comma", "--use-colour no one case"])
        os.remove(os.path.join(self.root, "out", "rows", "racecheck.contract_test.json"))
        self.write("finds/fails", "comma")
        self.assertEqual(row()[0], 1)
        self.assertIn("of 2 ranks 1 say that all tests passed", row()[1])

    def test_a_tool_that_is_blind_is_said(self):
        os.remove(os.path.join(self.finds, "memcheck.planted_faults"))
        code, _, err = self.run_script("--only", "planted")
        self.assertEqual(code, 1)
        self.assertIn("memcheck does not find the planted fault", err)

    def test_no_time_is_no_pass(self):
        self.assertEqual(self.run_script("--seconds", "10")[0], 3)
        self.assertEqual(self.ran(), [])


if __name__ == "__main__":
    unittest.main()
