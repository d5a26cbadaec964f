#include "runtime/base/cuda/cuda_pages.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/base/arithmetic.h"
#include "runtime/base/cuda/cuda_check.h"
#include "runtime/base/cuda/virtual_memory.h"
#include "runtime/base/error.h"

namespace millrace {
namespace {

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
    CheckVirtualMemory(TheVirtualMemory().reserve(&base_, static_cast<size_t>(reserved_), 0, 0, 0),
                       "cuMemAddressReserve", fmt::format("addresses of {}", label_));
    try {
      Map(0, reserved_);
    } catch (...) {  // no destructor will
      TheVirtualMemory().unreserve(base_, static_cast<size_t>(reserved_));
      throw;
    }
  }
  ~CudaPages() override {
    for (Piece& piece : pieces_)
      if (piece.mapped) TheVirtualMemory().unmap(At(piece), Size(piece));
    TheVirtualMemory().unreserve(base_, static_cast<size_t>(reserved_));
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
    const std::string what = fmt::format("{} bytes of device memory for {}", Size(piece), label_);
    MR_CHECK(!piece.mapped, "{}: they have memory", what);
    const CUmemAllocationProp prop = MemoryOnGpu(ordinal_);
    const CUmemGenericAllocationHandle memory = CreateMemory(prop, Size(piece), what);
    try {
      MapMemory(prop, At(piece), Size(piece), memory, what);
    } catch (...) {
      TheVirtualMemory().release(memory);
      throw;
    }
    TheVirtualMemory().release(memory);
    piece.mapped = true;
  }

  void UnmapPiece(Piece& piece) {
    CheckVirtualMemory(TheVirtualMemory().unmap(At(piece), Size(piece)), "cuMemUnmap",
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
  const CUmemAllocationProp prop = MemoryOnGpu(ordinal);
  size_t bytes = 0;
  CheckVirtualMemory(
      TheVirtualMemory().granularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity", fmt::format("pages of GPU {}", ordinal));
  return static_cast<int64_t>(bytes);
}

std::unique_ptr<PagedBuffer> AllocateCudaPages(int ordinal, int64_t bytes, const std::string& label,
                                               std::span<const int64_t> cuts) {
  MR_CUDA(cudaSetDevice(ordinal));
  return std::make_unique<CudaPages>(ordinal, bytes, label, cuts);
}

}  // namespace millrace
