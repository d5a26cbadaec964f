// Runs a fuzz target over inputs that are checked in, without libFuzzer: replay FOLDER... Each
// input is also cut off and altered at fixed places, so that the compiler and sanitizers of the
// ordinary build see more than what is accepted.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

int64_t RunAltered(const std::string& input) {
  constexpr size_t kCuts = 40, kAlterations = 120;
  int64_t runs = 0;
  for (size_t i = 0; i < kCuts && i < input.size(); ++i, ++runs)
    Run(input.substr(0, i * input.size() / kCuts));
  uint32_t state = 1;  // Knuth's MMIX constants would do as well: only the spread matters
  const auto next = [&state](size_t end) {
    return (state = state * 1664525 + 1013904223) / 256 % end;
  };
  for (size_t i = 0; i < kAlterations && !input.empty(); ++i, ++runs) {
    std::string altered = input;
    const size_t at = next(input.size());
    constexpr char kValues[] = {'0', '9', '"', '}', '[', ',', '-', '<', '\0', '\n', '\xff', '\x80'};
    altered[at] = kValues[next(sizeof(kValues))];
    if (i % 3 == 0) altered.erase(next(input.size()), 1 + next(8));
    Run(altered);
  }
  return runs;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> inputs;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
      if (entry.is_regular_file()) inputs.push_back(entry.path());
  std::sort(inputs.begin(), inputs.end());
  int64_t runs = 0;
  for (const std::filesystem::path& path : inputs) {
    std::fprintf(stderr, "%s\n", path.c_str());  // the last one named is the one that failed
    std::ifstream file(path, std::ios::binary);
    const std::string input(std::istreambuf_iterator<char>(file), {});
    Run(input);
    runs += 1 + RunAltered(input);
  }
  std::printf("%zu inputs, %lld runs\n", inputs.size(), static_cast<long long>(runs));
  return inputs.empty() ? 1 : 0;
}
