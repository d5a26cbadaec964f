#include "runtime/plan/check/weight_versions.h"

#include <variant>

namespace millrace {

void WeightVersions::Copy(const View& from, const View& to) {
  const BufferId master = master_[from.buffer];
  master_[to.buffer] = master;
  if (!master) return;
  copied_[to.buffer] = master == from.buffer ? updates_[master] : copied_[from.buffer];
}

void WeightVersions::Ran(const KernelOp& op) {
  if (const auto* cast = std::get_if<CastOp<View>>(&op)) {
    Copy(cast->x, cast->out);
  } else if (const auto* gather = std::get_if<AllGatherOp<View>>(&op);
             gather != nullptr && gather->shard) {
    Copy(gather->shard, gather->full);
  } else if (const auto* magnitudes = std::get_if<ShardMagnitudesOp<View>>(&op)) {
    Copy(magnitudes->master, magnitudes->row);
  } else if (const auto* scales = std::get_if<FlatScalesOp<View>>(&op)) {
    Copy(scales->table, scales->scales);
    if (scales->rest) Copy(scales->table, scales->rest);
  } else if (const auto* quantize = std::get_if<ShardQuantizeOp<View>>(&op)) {
    Copy(quantize->master, quantize->payload);
  } else if (const auto* adamw = std::get_if<AdamWOp<View>>(&op)) {
    ++updates_[adamw->master.buffer];
    if (adamw->compute) Copy(adamw->master, adamw->compute);
  } else if (const auto* muon = std::get_if<MuonUpdateOp<View>>(&op)) {
    ++updates_[muon->master.buffer];
    if (muon->compute) Copy(muon->master, muon->compute);
  } else if (const auto* balance = std::get_if<RouterBiasOp<View>>(&op)) {
    ++updates_[balance->bias.buffer];
  }
}

}  // namespace millrace
