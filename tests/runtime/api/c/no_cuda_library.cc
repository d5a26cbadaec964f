// A library of somebody else's.
extern "C" int another_table() { return 1; }
