// Stands for a libstdc++ that is newer than the system's: it goes by that name and has a version that no other has.
extern "C" int newest_function() { return 42; }
