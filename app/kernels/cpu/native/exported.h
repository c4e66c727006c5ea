// What Python may call. Everything else is hidden: the libraries of several instruction sets that are loaded by one
// process, as in the tests, would otherwise share each other's tables.
#pragma once

#define QUIRE_EXPORTED extern "C" __attribute__((visibility("default")))
