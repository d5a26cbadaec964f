#include "runtime/base/cuda/cuda_pages.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/driver_function.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

struct Driver {
  CUresult (*granularity)(size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
  CUresult (*reserve)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long);
  CUresult (*unreserve)(CUdeviceptr, size_t);
  CUresult (*create)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*,
                     unsigned long long);
  CUresult (*release)(CUmemGenericAllocationHandle);
  CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
  CUresult (*unmap)(CUdeviceptr, size_t);
  CUresult (*set_access)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t);
  CUresult (*error_name)(CUresult, const char**);
};

template <class F>
void Find(F*& function, const char* name) {
  function = DriverFunction<F>(name, 10020);
}

const Driver& TheDriver() {
  static const Driver driver = [] {
    Driver d{};
    Find(d.granularity, "cuMemGetAllocationGranularity");
    Find(d.reserve, "cuMemAddressReserve");
    Find(d.unreserve, "cuMemAddressFree");
    Find(d.create, "cuMemCreate");
    Find(d.release, "cuMemRelease");
    Find(d.map, "cuMemMap");
    Find(d.unmap, "cuMemUnmap");
    Find(d.set_access, "cuMemSetAccess");
    Find(d.error_name, "cuGetErrorName");
    return d;
  }();
  return driver;
}

void Check(CUresult result, const char* call, const std::string& what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  if (TheDriver().error_name(result, &name) != CUDA_SUCCESS) name = "an unknown error";
  throw Error(ErrorCode::kDevice, fmt::format("{}: {} of {}", what, name, call));
}

CUmemAllocationProp OnGpu(int ordinal) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = ordinal;
  return prop;
}

// Between two cuts lies one piece of physical memory: CUDA unmaps what was mapped at once, whole.
class CudaPages final : public PagedBuffer {
 public:
  CudaPages(int ordinal, int64_t bytes, std::string label, std::span<const int64_t> cuts)
      : ordinal_(ordinal), bytes_(bytes), label_(std::move(label)) {
    const int64_t page = CudaPageBytes(ordinal);
    reserved_ = RoundUp(std::max<int64_t>(bytes, 1), page);
    std::vector<int64_t> ends(cuts.begin(), cuts.end());
    ends.push_back(reserved_);
    int64_t begin = 0;
    for (const int64_t end : ends) {
      MR_CHECK(end % page == 0 && begin <= end && end <= reserved_,
               "a cut of {} at {}, behind {}, in {} bytes of pages of {}", label_, end, begin,
               reserved_, page);
      if (end > begin) pieces_.push_back({begin, end});
      begin = end;
    }
    Check(TheDriver().reserve(&base_, static_cast<size_t>(reserved_), 0, 0, 0),
          "cuMemAddressReserve", fmt::format("addresses of {}", label_));
    try {
      Map(0, reserved_);
    } catch (...) {  // no destructor will
      TheDriver().unreserve(base_, static_cast<size_t>(reserved_));
      throw;
    }
  }
  ~CudaPages() override {
    for (Piece& piece : pieces_)
      if (piece.mapped) TheDriver().unmap(At(piece), Size(piece));
    TheDriver().unreserve(base_, static_cast<size_t>(reserved_));
  }
  CudaPages(const CudaPages&) = delete;
  CudaPages& operator=(const CudaPages&) = delete;
  std::byte* data() const noexcept override { return reinterpret_cast<std::byte*>(base_); }
  int64_t bytes() const noexcept override { return bytes_; }

  void Unmap(int64_t begin, int64_t end) override {
    for (Piece* piece : PiecesOf(begin, end)) {
      MR_CHECK(piece->mapped, "[{}, {}) of {} has no memory to give back", piece->begin, piece->end,
               label_);
      UnmapPiece(*piece);
    }
  }

  void Map(int64_t begin, int64_t end) override {
    const std::vector<Piece*> pieces = PiecesOf(begin, end);
    size_t done = 0;
    try {
      for (; done < pieces.size(); ++done) MapPiece(*pieces[done]);
    } catch (...) {
      while (done > 0) UnmapPiece(*pieces[--done]);
      throw;
    }
  }

 private:
  struct Piece {
    int64_t begin = 0, end = 0;
    bool mapped = false;
  };
  CUdeviceptr At(const Piece& piece) const { return base_ + static_cast<CUdeviceptr>(piece.begin); }
  static size_t Size(const Piece& piece) { return static_cast<size_t>(piece.end - piece.begin); }

  std::vector<Piece*> PiecesOf(int64_t begin, int64_t end) {
    std::vector<Piece*> pieces;
    int64_t at = begin;
    for (Piece& piece : pieces_)
      if (begin <= piece.begin && piece.end <= end) {
        pieces.push_back(&piece);
        MR_CHECK_EQ(piece.begin, at, "pieces of {}", label_);
        at = piece.end;
      }
    MR_CHECK(at == end, "[{}, {}) of {} does not begin and end at its cuts", begin, end, label_);
    return pieces;
  }

  // The mapping keeps the memory: without it, it goes.
  void MapPiece(Piece& piece) {
    const Driver& driver = TheDriver();
    const std::string what = fmt::format("{} bytes of device memory for {}", Size(piece), label_);
    MR_CHECK(!piece.mapped, "{}: they have memory", what);
    const CUmemAllocationProp prop = OnGpu(ordinal_);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult created = driver.create(&handle, Size(piece), &prop, 0);
    if (created == CUDA_ERROR_OUT_OF_MEMORY) {
      size_t free = 0, total = 0;
      MR_CUDA(cudaMemGetInfo(&free, &total));
      throw Error(ErrorCode::kOutOfMemory,
                  fmt::format("cannot allocate {}: {} of {} bytes are free", what, free, total));
    }
    Check(created, "cuMemCreate", what);
    const CUresult mapped = driver.map(At(piece), Size(piece), 0, handle, 0);
    driver.release(handle);
    Check(mapped, "cuMemMap", what);
    const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUresult allowed = driver.set_access(At(piece), Size(piece), &access, 1);
    if (allowed != CUDA_SUCCESS) driver.unmap(At(piece), Size(piece));
    Check(allowed, "cuMemSetAccess", what);
    piece.mapped = true;
  }

  void UnmapPiece(Piece& piece) {
    Check(TheDriver().unmap(At(piece), Size(piece)), "cuMemUnmap",
          fmt::format("{} bytes of {}", Size(piece), label_));
    piece.mapped = false;
  }

  const int ordinal_;
  const int64_t bytes_;
  const std::string label_;
  int64_t reserved_ = 0;
  CUdeviceptr base_ = 0;
  std::vector<Piece> pieces_;
};

}  // namespace

int64_t CudaPageBytes(int ordinal) {
  const CUmemAllocationProp prop = OnGpu(ordinal);
  size_t bytes = 0;
  Check(TheDriver().granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
        "cuMemGetAllocationGranularity", fmt::format("pages of GPU {}", ordinal));
  return static_cast<int64_t>(bytes);
}

std::unique_ptr<PagedBuffer> AllocateCudaPages(int ordinal, int64_t bytes, const std::string& label,
                                               std::span<const int64_t> cuts) {
  MR_CUDA(cudaSetDevice(ordinal));
  return std::make_unique<CudaPages>(ordinal, bytes, label, cuts);
}

}  // namespace millrace
