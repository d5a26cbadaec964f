#include "third_party/catch2/session.h"

int main(int argc, char** argv) { return millrace::RunCatchSession(argc, argv); }
