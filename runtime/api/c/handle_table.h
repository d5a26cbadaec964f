// What stands behind the handles of millrace.h. A handle is a number, never an address: one that
// was destroyed is not given out again, and nobody looks behind it.
//
// There is a table for each kind of handle, and one count for all of a library's: a run is no
// tokenizer. The tables are what the runs of a process share. Any thread.
#pragma once

#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/api/backend.h"
#include "runtime/api/c/run_functions.h"
#include "runtime/api/c/status.h"

namespace millrace {

inline std::atomic<uintptr_t> handles_given = 0;

// An object lives until its handle is removed and the last call that has found it is done.
template <class Handle, class Object>
class HandleTable {
 public:
  Handle* Add(std::shared_ptr<Object> object) {
    const HandleKind kind = CudaBuiltIn() ? HandleKind::kCuda : HandleKind::kCpu;
    const uintptr_t number = ++handles_given << kHandleKindBits | static_cast<uintptr_t>(kind);
    auto* const handle = reinterpret_cast<Handle*>(number);
    const std::lock_guard lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }
  // Null: it is no handle, or was removed.
  std::shared_ptr<Object> Find(const Handle* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  // Never null: CallError MR_INVALID_ARGUMENT, with the argument's name.
  std::shared_ptr<Object> Require(const Handle* handle, const char* name) {
    if (handle == nullptr) throw CallError(MR_INVALID_ARGUMENT, fmt::format("{} is NULL", name));
    std::shared_ptr<Object> found = Find(handle);
    if (!found)
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("{} is no handle, or was destroyed before this call", name));
    return found;
  }
  // What it stood for; null as of Find.
  std::shared_ptr<Object> Remove(const Handle* handle) {
    const std::lock_guard lock(mutex_);
    const auto removed = objects_.extract(handle);
    return removed.empty() ? nullptr : std::move(removed.mapped());
  }

  static HandleTable& Get() {
    static HandleTable* const table = new HandleTable;  // threads may outlive static objects
    return *table;
  }

 private:
  std::mutex mutex_;
  std::map<const Handle*, std::shared_ptr<Object>> objects_;
};

}  // namespace millrace
