// Standard input, output and error as the program finds and leaves them.
#pragma once

#include <string>

namespace millrace {

// Before anything opens a file: a closed descriptor 0, 1 or 2 becomes /dev/null, so that no file of
// the run gets its number and what is printed. For `train` a reader of standard output that goes
// away (| head) does not end the program, as its results are files. A limit on the size of files is
// a failed write, not a signal. A line on standard error is one write: with a write per word, what
// another process prints lands within it.
void PrepareStandardStreams(const std::string& verb);

// After the verb: the exit code, given the verb's own. When standard output could not be written
// (disk full, reader gone) that is a line on standard error, and kIo where it was the result: for
// all verbs but `train`.
int FinishStandardOutput(const std::string& verb, int code);

}  // namespace millrace
