// millrace doctor: what this host and this program have, what is missing, and what to do about it.
#include <cblas.h>
#include <fmt/core.h>
#include <gnu/libc-version.h>
#include <mpi.h>
#include <spdlog/version.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/cpu/cpu_kernels.h"
#include "runtime/api/host_facts.h"
#include "runtime/base/cpu/host_device.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "tools/cli/doctor/cuda_report.h"
#include "tools/cli/doctor/known_answer.h"
#include "tools/cli/launch/this_program.h"
#include "tools/cli/terminal/console.h"
#include "tools/cli/verbs.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// One thing that was looked at. `serious`: training on the best backend of this host cannot work.
struct Finding {
  std::string name, detail, trouble, fix;
  bool serious = false;
};

std::string FirstLineOf(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string FirstLineOfCommand(const std::string& command) {
  FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return "";
  char line[256] = {};
  const bool read = std::fgets(line, sizeof line, pipe) != nullptr;
  pclose(pipe);
  return read ? FirstLineOf(line) : "";
}

// "4.1" of "mpirun (Open MPI) 4.1.4" and "Open MPI v4.1.4, package: ..."; ""
// when there is no such number.
std::string MajorMinor(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) continue;
    const size_t end = text.find_first_not_of("0123456789.", i);
    const std::string number = text.substr(i, end == std::string::npos ? end : end - i);
    const size_t dot = number.find('.');
    if (dot == std::string::npos) return "";
    return number.substr(0, number.find('.', dot + 1));
  }
  return "";
}

Finding InspectHost() {
  std::ifstream memory("/proc/meminfo");
  std::string word;
  int64_t kib = 0;
  memory >> word >> kib;
  return {"host",
          fmt::format("{} cores, {}, glibc {}", std::thread::hardware_concurrency(),
                      HumanBytes(kib << 10), gnu_get_libc_version()),
          "", ""};
}

// Ranks of one host, and NCCL, talk through it; containers often get 64 MiB.
Finding InspectSharedMemory() {
  Finding finding{"shared memory", "", "", ""};
  struct statvfs info = {};
  if (statvfs("/dev/shm", &info) != 0) {
    finding.trouble = "no /dev/shm";
    finding.fix = "mount a tmpfs on /dev/shm";
    return finding;
  }
  const int64_t free_bytes =
      static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  finding.detail = fmt::format("/dev/shm, {} free", HumanBytes(free_bytes));
  if (free_bytes < int64_t{128} << 20) {
    finding.trouble = "little room: ranks of one host and NCCL may fail to start";
    finding.fix = "start the container with --shm-size=1g, or remove old files from /dev/shm";
  }
  return finding;
}

Finding InspectMpi() {
  const std::string loaded = MpiLibrary(),
                    file = LoadedFrom(reinterpret_cast<const void*>(&MPI_Init));
  const std::string mpirun = FirstLineOfCommand("mpirun --version");
  Finding finding{
      "MPI",
      fmt::format("{} ({}); compiled with Open MPI {}.{}.{}; {}", loaded, file, OMPI_MAJOR_VERSION,
                  OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION, mpirun.empty() ? "no mpirun" : mpirun),
      "", ""};
  if (mpirun.empty()) {
    finding.trouble = "no mpirun in PATH: several ranks can be started by Slurm only";
    finding.fix = "apt-get install openmpi-bin";
  } else if (MajorMinor(mpirun) != MajorMinor(loaded)) {
    finding.trouble =
        "mpirun is of another Open MPI than the library: each rank would be alone in its world";
    finding.fix = "put the mpirun that belongs to " + file + " first in PATH";
    finding.serious = true;
  }
  return finding;
}

std::vector<Finding> InspectHostLibraries() {
  return {
      {"BLAS",
       fmt::format("{} ({})", BlasLibrary(),
                   LoadedFrom(reinterpret_cast<const void*>(&openblas_get_config))),
       "", ""},
      {"spdlog",
       fmt::format("compiled with {}.{}.{}, fmt {}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR,
                   SPDLOG_VER_PATCH, FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
                   FMT_VERSION % 100),
       "", ""},
  };
}

constexpr const char* kArithmetic = "arithmetic";

Finding InspectArithmetic() {
  constexpr int64_t kSize = 512;  // blocks of all kinds, a fraction of a second
  Finding finding{kArithmetic, "", "", ""};
  finding.trouble = KnownAnswerProducts(*MakeHostDevice(), CpuKernels(), Backend::kCpu, kSize);
  finding.serious = !finding.trouble.empty();
  if (finding.serious)
    finding.fix = "exclude the host: its processor or memory, or the BLAS above, is faulty";
  else
    finding.detail =
        fmt::format("products of known result are right, f32 and bf16, {0} x {0}", kSize);
  return finding;
}

std::string Words(const LibraryReport& library) {
  std::string text;
  if (!library.loaded.empty()) text = library.loaded;
  if (!library.compiled.empty() && library.compiled != library.loaded)
    text += ", compiled with " + library.compiled;
  if (!library.file.empty()) text += (text.empty() ? "" : " ") + fmt::format("({})", library.file);
  return text;
}

// What bin/millrace of a package could not find (tools/lib/package/env.sh); it then starts the
// program without CUDA.
std::string MissingLibraries() {
  const char* names = std::getenv("MILLRACE_MISSING_LIBRARIES");
  return names == nullptr ? "" : names;
}

std::vector<Finding> InspectGpus(const CudaReport& cuda) {
  std::vector<Finding> findings;
  const std::string kernel_driver = KernelDriver(), missing = MissingLibraries();
  Finding driver{"NVIDIA driver", "", "", ""};
  if (!cuda.driver.empty()) driver.detail = "supports CUDA " + cuda.driver;
  if (!kernel_driver.empty()) driver.detail += (driver.detail.empty() ? "" : "; ") + kernel_driver;
  const bool gpu_host = !kernel_driver.empty() || !cuda.driver.empty();
  if (!gpu_host) driver.detail = "none: training runs on the CPU";
  findings.push_back(driver);

  Finding built{"CUDA", cuda.built_in ? "built in" : "", "", ""};
  if (!missing.empty()) {
    built.trouble = "not found on this host: " + missing;
    built.fix =
        "install them (pip install nvidia-nccl-cu13 nvidia-cudnn-cu13, or NVIDIA's packages), or "
        "name their folders in LD_LIBRARY_PATH";
    built.serious = gpu_host;
  } else if (!cuda.built_in) {
    if (gpu_host) {
      built.trouble = "there is a GPU driver, but " + cuda.trouble;
      built.fix = "build where a CUDA toolkit is (tools/README.md), or use a package that was";
      built.serious = true;
    } else {
      built.detail = "not built in";
    }
  } else if (!cuda.trouble.empty() && gpu_host) {
    built.trouble = cuda.trouble;
    built.fix =
        "nvidia-smi must list the GPUs; the driver must support the CUDA runtime below (or newer)";
    built.serious = true;
  }
  findings.push_back(built);

  for (const LibraryReport& library : cuda.libraries)
    findings.push_back({library.name, Words(library), library.trouble,
                        library.trouble.empty() ? "" : "put a newer one first in LD_LIBRARY_PATH",
                        !library.trouble.empty() && gpu_host});
  for (const GpuReport& gpu : cuda.gpus)
    findings.push_back(
        {fmt::format("GPU {}", gpu.ordinal),
         fmt::format("{}, {}, {} multiprocessors, compute capability {}, PCI {}", gpu.name,
                     HumanBytes(gpu.memory_bytes), gpu.multiprocessors, gpu.compute_capability,
                     gpu.pci),
         gpu.trouble,
         gpu.trouble.empty() ? "" : "leave it out with CUDA_VISIBLE_DEVICES, or exclude the host",
         !gpu.trouble.empty()});
  return findings;
}

const char* Name(GpuLink link) {
  switch (link) {
    case GpuLink::kSelf:
      return "self";
    case GpuLink::kNone:
      return "none";
    case GpuLink::kPcie:
      return "pcie";
    case GpuLink::kNvlink:
      return "nvlink";
  }
  return "?";
}

std::string LinksText(const CudaReport& cuda) {
  if (cuda.gpus.size() < 2) return "";
  std::string text = "links    ";
  for (const GpuReport& gpu : cuda.gpus)
    text += fmt::format("{:>8}", fmt::format("GPU {}", gpu.ordinal));
  for (size_t from = 0; from < cuda.links.size(); ++from) {
    text += fmt::format("\n   {:<6}", fmt::format("GPU {}", from));
    for (const GpuLink link : cuda.links[from])
      text += fmt::format("{:>8}", link == GpuLink::kSelf ? "-" : Name(link));
  }
  return text + "\n";
}

Json ToJson(const std::vector<Finding>& findings, const CudaReport& cuda, bool ok,
            const std::string& backend) {
  Json json = {
      {"ok", ok}, {"backend", backend}, {"findings", Json::array()}, {"gpus", Json::array()}};
  for (const Finding& f : findings)
    json["findings"].push_back({{"name", f.name},
                                {"detail", f.detail},
                                {"trouble", f.trouble},
                                {"fix", f.fix},
                                {"serious", f.serious}});
  for (const GpuReport& gpu : cuda.gpus)
    json["gpus"].push_back({{"ordinal", gpu.ordinal},
                            {"name", gpu.name},
                            {"pci", gpu.pci},
                            {"compute_capability", gpu.compute_capability},
                            {"memory_bytes", gpu.memory_bytes},
                            {"multiprocessors", gpu.multiprocessors},
                            {"trouble", gpu.trouble}});
  json["links"] = Json::array();
  for (const std::vector<GpuLink>& row : cuda.links) {
    Json& line = json["links"].emplace_back(Json::array());
    for (const GpuLink link : row) line.push_back(Name(link));
  }
  json["libraries"] = Json::array();
  for (const LibraryReport& library : cuda.libraries)
    json["libraries"].push_back({{"name", library.name},
                                 {"compiled", library.compiled},
                                 {"loaded", library.loaded},
                                 {"file", library.file},
                                 {"trouble", library.trouble}});
  return json;
}

}  // namespace

int DoctorVerb(bool json) {
  const CudaReport cuda = InspectCuda();
  std::vector<Finding> findings = {InspectHost(), InspectSharedMemory(), InspectMpi()};
  for (const std::vector<Finding>& more :
       {InspectHostLibraries(), {InspectArithmetic()}, InspectGpus(cuda)})
    findings.insert(findings.end(), more.begin(), more.end());
  const bool ok =
      std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.serious; });
  const bool device_failed =
      std::any_of(cuda.gpus.begin(), cuda.gpus.end(),
                  [](const GpuReport& gpu) { return !gpu.trouble.empty(); }) ||
      std::any_of(findings.begin(), findings.end(),
                  [](const Finding& f) { return f.name == kArithmetic && f.serious; });
  const std::string backend = cuda.built_in && cuda.trouble.empty() ? "cuda" : "cpu";

  if (json) {
    std::cout << DumpJson(ToJson(findings, cuda, ok, backend)) << std::endl;
  } else {
    for (const Finding& finding : findings) {
      const char* sign = finding.trouble.empty() ? " " : finding.serious ? "!" : "?";
      std::cout << fmt::format("{} {:<14} {}\n", sign, finding.name, finding.detail);
      if (finding.trouble.empty()) continue;
      std::cout << fmt::format("  {:<14} {}\n  {:<14} -> {}\n", "", finding.trouble, "",
                               finding.fix);
    }
    std::cout << LinksText(cuda);
    if (ok) {
      std::cout << fmt::format(
          "training works here, on {}\n",
          backend == "cuda" ? fmt::format("{} GPU(s)", cuda.gpus.size()) : "the CPU");
    } else {
      std::cout << "training on the best that this host has cannot work; see the lines marked !\n";
    }
    std::cout << std::flush;
  }
  if (ok) return 0;
  return ExitCode(device_failed ? ErrorCode::kDevice : ErrorCode::kConfig);
}

}  // namespace millrace
