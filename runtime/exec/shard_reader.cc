#include "runtime/exec/shard_reader.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/float16.h"
#include "runtime/exec/engine.h"

namespace millrace {
namespace {

// Large enough for the links of a GPU, small enough for a core's caches.
constexpr int64_t kPieceNumel = int64_t{1} << 20;

}  // namespace

ShardReader::ShardReader(Engine& engine) : engine_(engine) {
  int64_t numel = 0;
  for (const FlatParam& flat : engine.layout().flats) numel = std::max(numel, flat.shard_numel);
  for (Piece& piece : pieces_)
    piece = {engine.device().AllocateHost(
                 std::min(numel, kPieceNumel) * static_cast<int64_t>(sizeof(float)),
                 "pieces of shards that are read"),
             engine.device().MakeEvent()};
}

void ShardReader::Read(std::string_view slot, FlatId flat, const Range& range,
                       const std::function<void(std::span<const float>)>& f) {
  const TensorView view = engine_.ShardView(slot, flat);
  MR_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= view.numel(),
           "elements {} to {} of the {} that {} of {} has here", range.begin, range.end,
           view.numel(), slot, engine_.layout().flat(flat).name);
  const int64_t element = Bytes(view.dtype());
  Stream& compute = engine_.stream(StreamId::kCompute);
  const auto enqueue = [&](int64_t begin, Piece& piece) {
    const int64_t n = std::min(range.end - begin, kPieceNumel);
    if (n <= 0) return;
    engine_.device().EnqueueToHost(piece.buffer->data(), view.data + begin * element, n * element,
                                   compute);
    compute.Record(*piece.arrived);
  };
  enqueue(range.begin, pieces_[0]);
  for (int64_t begin = range.begin; begin < range.end; begin += kPieceNumel) {
    enqueue(begin + kPieceNumel, pieces_[1]);
    engine_.device().SyncEvent(*pieces_[0].arrived);
    const auto n = static_cast<size_t>(std::min(range.end - begin, kPieceNumel));
    const std::byte* const data = pieces_[0].buffer->data();
    if (view.dtype() == DType::kF32) {
      f({reinterpret_cast<const float*>(data), n});
    } else {
      MR_CHECK(view.dtype() == DType::kBF16, "{} is kept as {}", slot, Name(view.dtype()));
      widened_.resize(n);
      ConvertToFloat(reinterpret_cast<const BFloat16*>(data), widened_.data(),
                     static_cast<int64_t>(n));
      f(widened_);
    }
    std::swap(pieces_[0], pieces_[1]);
  }
}

}  // namespace millrace
