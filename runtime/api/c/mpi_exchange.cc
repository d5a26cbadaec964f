#include "runtime/api/c/mpi_exchange.h"

#include <dlfcn.h>
#include <fmt/core.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/api/c/status.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

constexpr const char* kLibrary = "libmpi.so.40";  // Open MPI 2 to 5

// Open MPI's MPI_Comm, MPI_Datatype and MPI_Errhandler are all pointers.
struct Functions {
  int (*Initialized)(int* flag);
  int (*Finalized)(int* flag);
  int (*Init_thread)(int* argc, char*** argv, int required, int* provided);
  int (*Finalize)();
  int (*Comm_dup)(void* comm, void** duplicate);
  int (*Comm_free)(void** comm);
  int (*Comm_rank)(void* comm, int* rank);
  int (*Comm_size)(void* comm, int* size);
  int (*Comm_set_errhandler)(void* comm, void* handler);
  int (*Allgather)(const void* send, int send_count, void* send_type, void* receive,
                   int receive_count, void* receive_type, void* comm);
  int (*Error_string)(int code, char* text, int* length);
  void *world, *byte, *errors_return;
};

constexpr int kMostErrorText = 256;   // MPI_MAX_ERROR_STRING
constexpr int kThreadSerialized = 2;  // MPI_THREAD_SERIALIZED

template <class T>
void Find(void* library, const std::string& file, const char* name, T& found) {
  found = reinterpret_cast<T>(dlsym(library, name));
  if (found == nullptr)
    throw CallError(
        MR_UNSUPPORTED,
        fmt::format("{} has no {}: MPI can be opened where it is Open MPI", file, name));
}

Functions Open(const std::string& file) {
  // Its plugins look its names up in the whole process. Where it is there already, this is it.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr)
    throw CallError(MR_UNSUPPORTED,
                    fmt::format("MPI was asked for, and cannot be opened: {}; "
                                "allowed is Open MPI's library (options.mpi.library)",
                                dlerror()));
  Functions mpi{};
  Find(library, file, "MPI_Initialized", mpi.Initialized);
  Find(library, file, "MPI_Finalized", mpi.Finalized);
  Find(library, file, "MPI_Init_thread", mpi.Init_thread);
  Find(library, file, "MPI_Finalize", mpi.Finalize);
  Find(library, file, "MPI_Comm_dup", mpi.Comm_dup);
  Find(library, file, "MPI_Comm_free", mpi.Comm_free);
  Find(library, file, "MPI_Comm_rank", mpi.Comm_rank);
  Find(library, file, "MPI_Comm_size", mpi.Comm_size);
  Find(library, file, "MPI_Comm_set_errhandler", mpi.Comm_set_errhandler);
  Find(library, file, "MPI_Allgather", mpi.Allgather);
  Find(library, file, "MPI_Error_string", mpi.Error_string);
  Find(library, file, "ompi_mpi_comm_world", mpi.world);
  Find(library, file, "ompi_mpi_byte", mpi.byte);
  Find(library, file, "ompi_mpi_errors_return", mpi.errors_return);
  const void* const other = dlsym(RTLD_DEFAULT, "MPI_Allgather");
  if (other != nullptr && other != reinterpret_cast<void*>(mpi.Allgather))
    throw CallError(MR_UNSUPPORTED,
                    fmt::format("the process has another MPI than {}; name its library, which must "
                                "be Open MPI's, in options.mpi.library",
                                file));
  return mpi;
}

// One MPI for a process, which cannot begin twice.
struct Process {
  std::mutex mutex;
  bool opened = false;
  std::string file;
  Functions mpi{};
};
Process& TheProcess() {
  static Process* const process = new Process;  // MPI is ended behind static objects
  return *process;
}

void Check(const Functions& mpi, int code, const char* call) {
  if (code == 0) return;
  char text[kMostErrorText] = "";
  int length = 0;
  mpi.Error_string(code, text, &length);
  throw Error(ErrorCode::kComm, fmt::format("{} failed: {}", call, text));
}

void EndMpi() {
  const Functions& mpi = TheProcess().mpi;
  int ended = 0;
  if (mpi.Finalized(&ended) == 0 && ended == 0) mpi.Finalize();
}

void Begin(const Functions& mpi) {
  int begun = 0, ended = 0, threads = 0;
  Check(mpi, mpi.Finalized(&ended), "MPI_Finalized");
  if (ended != 0)
    throw CallError(MR_UNSUPPORTED, "MPI has ended in this process, and cannot begin again");
  Check(mpi, mpi.Initialized(&begun), "MPI_Initialized");
  if (begun != 0) return;
  Check(mpi, mpi.Init_thread(nullptr, nullptr, kThreadSerialized, &threads), "MPI_Init_thread");
  std::atexit(EndMpi);
}

const Functions& OpenedFor(const mr_mpi& asked) {
  Process& process = TheProcess();
  const std::string file = asked.library == nullptr ? kLibrary : asked.library;
  const std::lock_guard lock(process.mutex);
  if (!process.opened) {
    process.mpi = Open(file);
    process.file = file;
    process.opened = true;
  }
  if (process.file != file)
    throw CallError(MR_UNSUPPORTED,
                    fmt::format("options.mpi.library is {}, and an earlier run has opened {}: a "
                                "process has one MPI",
                                file, process.file));
  Begin(process.mpi);
  return process.mpi;
}

}  // namespace

void BeginMpi(const mr_mpi& asked) { OpenedFor(asked); }

MpiExchange::MpiExchange(const mr_mpi& asked) {
  const Functions& mpi = OpenedFor(asked);
  void* const from = asked.comm == nullptr ? mpi.world : *static_cast<void* const*>(asked.comm);
  if (from == nullptr) throw CallError(MR_INVALID_ARGUMENT, "options.mpi.comm is no communicator");
  Check(mpi, mpi.Comm_rank(from, &rank_), "MPI_Comm_rank");
  Check(mpi, mpi.Comm_size(from, &world_), "MPI_Comm_size");
  Check(mpi, mpi.Comm_dup(from, &comm_), "MPI_Comm_dup");
  Check(mpi, mpi.Comm_set_errhandler(comm_, mpi.errors_return), "MPI_Comm_set_errhandler");
}

MpiExchange::~MpiExchange() {
  if (comm_ != nullptr) TheProcess().mpi.Comm_free(&comm_);
}

mr_status* MpiExchange::Exchange(void* self, void* buffer, size_t each) {
  return Guarded([&] {
    const MpiExchange& of = *static_cast<MpiExchange*>(self);
    const Functions& mpi = TheProcess().mpi;
    MR_CHECK(each <= INT_MAX, "{} bytes of each rank", each);
    const char* const own = static_cast<char*>(buffer) + each * static_cast<size_t>(of.rank_);
    const std::vector<char> sent(own, own + each);
    const int count = static_cast<int>(each);
    Check(mpi, mpi.Allgather(sent.data(), count, mpi.byte, buffer, count, mpi.byte, of.comm_),
          "MPI_Allgather");
  });
}

}  // namespace millrace
