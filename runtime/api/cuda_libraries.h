// CUDA's libraries as this process has them. cuda_libraries.cc knows them where CUDA is built in; a
// build without it links no_cuda_backend.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

// A library that this program was compiled against and runs with. Versions as its maker writes
// them; "" unknown.
struct LibraryReport {
  std::string name;
  std::string compiled, loaded;
  std::string file;     // which one the loader took; "" inside the program, or none
  std::string trouble;  // "" fine
};

// Of CUDA's libraries: versions and files, without opening any that is not loaded yet.
std::vector<LibraryReport> LoadedCudaLibraries();
// CUDA version that the driver supports; "" no driver.
std::string CudaOfDriver();

}  // namespace millrace
