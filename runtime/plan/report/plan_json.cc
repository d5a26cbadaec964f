#include "runtime/plan/report/plan_json.h"

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

using nlohmann::json;

json ClassesJson(const std::array<int64_t, kBufferClasses>& bytes) {
  json object = json::object();
  for (size_t c = 0; c < bytes.size(); ++c)
    object[std::string(Name(static_cast<BufferClass>(c)))] = bytes[c];
  return object;
}

json StreamsJson(const TimeFigures& time, const std::array<double, kStreams>& seconds) {
  json object = json::object();
  for (int s = 0; s < Timeline::StreamsShown(time.busy); ++s)
    object[std::string(Name(static_cast<StreamId>(s)))] = seconds[static_cast<size_t>(s)];
  return object;
}

// With the sizes of a block where all are equal.
json ModelJson(const ModelFigures& m) {
  json object = {{"family", m.shape.family},       {"layers", m.shape.layers()},
                 {"d_model", m.shape.d_model},     {"vocab", m.shape.vocab},
                 {"padded_vocab", m.padded_vocab}, {"seq_len", m.shape.seq_len},
                 {"parameters", m.parameters},     {"matmul_parameters", m.matmul_parameters}};
  if (const EqualBlock equal = EqualBlockOf(m.shape)) {
    object["heads"] = equal.attention->heads;
    object["kv_heads"] = equal.attention->kv_heads;
    object["head_dim"] = equal.attention->head_dim;
    object["ffn"] = equal.mlp->width;
  }
  json blocks = json::array();
  for (const BlockRun& run : RunsOf(m.shape.blocks))
    blocks.push_back({{"first", run.first},
                      {"count", run.count},
                      {"block", ToString(m.shape.blocks[static_cast<size_t>(run.first)])}});
  object["blocks"] = std::move(blocks);
  return object;
}

json MemoryJson(const MemoryFigures& m) {
  json memory = {{"bytes_per_rank", ClassesJson(m.by_class)},
                 {"bytes_at_peak", ClassesJson(m.at_peak)},
                 {"arena_bytes", m.arena},
                 {"run_arena_bytes", m.run_arena},
                 {"device_bytes", m.device > 0 ? json(m.device) : json(nullptr)},
                 {"device_has_bytes", m.device_has > 0 ? json(m.device_has) : json(nullptr)},
                 {"lower_bound_bytes", m.lower_bound},
                 {"persistent_bytes", m.persistent},
                 {"parameter_pool_bytes", m.parameter_pool},
                 {"gradient_pool_bytes", m.gradient_pool}};
  if (m.received > 0) memory["receive_buffer_bytes"] = m.received;
  return memory;
}

json RecomputeJson(const RecomputeFigures& r) {
  json figures = {{"auto", r.searched},
                  {"block_units", r.counts.blocks},
                  {"everything", r.counts.everything},
                  {"saved_bytes", r.searched ? json(r.saved_bytes) : json(nullptr)},
                  {"ops", r.ops},
                  {"seconds", r.seconds}};
  figures["exchanges"] = {{"kept", r.exchanges.kept},
                          {"all", r.exchanges.all},
                          {"held_bytes", r.exchanges.held_bytes},
                          {"wire_bytes_saved", r.exchanges.wire_bytes}};
  for (const auto& [kind, units] : r.counts.cheap) figures[kind + "s"] = units;
  return figures;
}

json WireJson(const PlanReport& r) {
  json parameters_as = json::object();
  for (const auto& [dtype, bytes] : r.wire.parameters_as)
    parameters_as[std::string(Name(dtype))] = bytes;
  return {
      {"bytes_per_rank_and_step", r.step.wire_bytes()},
      {"by_collective",
       {{"all_gather", {{"count", r.step.all_gathers}, {"bytes", r.step.gathered_bytes}}},
        {"reduce_scatter", {{"count", r.step.reduce_scatters}, {"bytes", r.step.reduced_bytes}}},
        {"all_reduce", {{"count", r.step.all_reduces}, {"bytes", r.step.all_reduced_bytes}}},
        {"all_to_all", {{"count", r.step.all_to_alls}, {"bytes", r.step.exchanged_bytes}}}}},
      {"by_purpose",
       {{"parameters", r.wire.parameters},
        {"gradients", r.wire.gradients},
        {"gradient_replicas", r.wire.gradient_replicas},
        {"statistics", r.wire.statistics},
        {"exchanges", r.wire.exchanges}}},
      {"parameters_as", parameters_as}};
}

json FlopsJson(const PlanReport& r) {
  const double tokens = static_cast<double>(r.tokens_per_step) / r.world;
  return {
      {"per_token", {{"causal", r.flops_per_token_causal}, {"full", r.flops_per_token_full}}},
      {"per_rank_and_step",
       {{"causal", r.flops_per_token_causal * tokens},
        {"full", r.flops_per_token_full * tokens},
        {"ops", r.op_flops}}},
      {"formula",
       "per token 6*N + c*L*heads*head_dim*T; N = model.matmul_parameters, c = 6 causal, 12 full"}};
}

json TimeJson(const PlanReport& r) {
  const TimeFigures& t = r.time;
  return {{"roofline_s", t.roofline},
          {"step_s", t.step},
          {"busy_s", StreamsJson(t, t.busy)},
          {"exposed_communication_s", Timeline::ExposedTotal(t.exposed)},
          {"exposed_by_stream_s", StreamsJson(t, t.exposed)},
          {"tokens_per_s", t.tokens_per_second},
          {"tokens_per_s_per_rank", t.tokens_per_second / r.world},
          {"mfu_causal", t.mfu_causal},
          {"mfu_full", t.mfu_full},
          {"peak_flops_per_s", t.peak_flops}};
}

json MachineJson(const PlanReport& r) {
  const Machine& m = r.machine;
  json out = {{"name", m.name},
              {"title", m.title},
              {"source", m.source},
              {"measured", m.measured},
              {"peak_bf16_flops_per_s", m.peak_bf16},
              {"peak_f32_flops_per_s", m.peak_f32},
              {"gemm_bf16_flops_per_s", m.gemm_bf16},
              {"gemm_f32_flops_per_s", m.gemm_f32},
              {"vector_flops_per_s", m.vector},
              {"memory_bytes_per_s", m.memory},
              {"link_bytes_per_s", m.link},
              {"ranks_per_host", m.ranks_per_host},
              {"host_link_bytes_per_s", m.host_link},
              {"host_hop_s", m.host_hop},
              {"link_hop_s", m.link_hop},
              {"collective_latency_s", m.collective_latency},
              {"collective_share_of_compute", m.collective_share},
              {"kernel_start_s", m.kernel_start},
              {"op_gap_s", m.op_gap},
              {"concurrent_streams", m.concurrent_streams}};
  if (r.options.contains("precision.linear")) out["gemm_fp8_flops_per_s"] = m.gemm(DType::kE4M3);
  return out;
}

json EstimateJson(const OpEstimate& e) {
  return {
      {"flops", e.flops},           {"read_bytes", e.read_bytes}, {"write_bytes", e.write_bytes},
      {"wire_bytes", e.wire_bytes}, {"seconds", e.seconds},       {"bound", Name(e.bound)}};
}

json RooflineJson(const PlanReport& r, OpList list) {
  json kinds = json::array();
  for (const KindFigures& kind : r.kinds) {
    json row = EstimateJson(kind.sum);
    row["kind"] = kind.kind;
    row["count"] = kind.count;
    kinds.push_back(std::move(row));
  }
  json roofline = {{"by_kind", std::move(kinds)}};
  if (list == OpList::kNone) return roofline;
  json ops = json::array();
  for (const OpFigures& op : r.ops) {
    json row = EstimateJson(op.each);
    row["body"] = op.body;
    row["kind"] = op.kind;
    row["label"] = op.label;
    row["stream"] = Name(op.stream);
    row["runs"] = op.runs;
    ops.push_back(std::move(row));
  }
  roofline["ops"] = std::move(ops);
  return roofline;
}

// Axes that nobody has asked for are left out.
json MeshJson(const PlanReport& r) {
  json mesh = {{"world", r.world},
               {"shard", r.mesh.Size(Axis::kShard)},
               {"replicate", r.mesh.Size(Axis::kReplicate)}};
  for (const Axis axis : {Axis::kContext, Axis::kExpert, Axis::kTensor})
    if (r.mesh.Size(axis) > 1) mesh[std::string(Name(axis))] = r.mesh.Size(axis);
  if (r.mesh.data_ranks() != r.world) mesh["data_ranks"] = r.mesh.data_ranks();
  return mesh;
}

}  // namespace

json CountersJson(const PlanCounters& c) {
  return {{"ops", c.ops},
          {"all_gathers", c.all_gathers},
          {"reduce_scatters", c.reduce_scatters},
          {"all_reduces", c.all_reduces},
          {"all_to_alls", c.all_to_alls},
          {"gathered_bytes", c.gathered_bytes},
          {"reduced_bytes", c.reduced_bytes},
          {"all_reduced_bytes", c.all_reduced_bytes},
          {"exchanged_bytes", c.exchanged_bytes},
          {"concatenated_bytes", c.concatenated_bytes},
          {"cast_bytes", c.cast_bytes},
          {"copied_bytes", c.copied_bytes}};
}

json PlanReportJson(const PlanReport& r, OpList ops) {
  return {{"plan", {{"kind", r.kind}, {"hash", r.hash}, {"execution", r.execution}}},
          {"model", ModelJson(r.model)},
          {"mesh", MeshJson(r)},
          {"batch",
           {{"micro_batch", r.shape.batch},
            {"seq_len", r.shape.seq},
            {"accumulate", r.accumulate},
            {"tokens_per_step", r.tokens_per_step}}},
          {"options", r.options},
          {"memory", MemoryJson(r.memory)},
          {"recompute", RecomputeJson(r.recompute)},
          {"checkpoint",
           {{"bytes", r.memory.checkpoint}, {"bytes_per_rank", r.memory.checkpoint_per_rank}}},
          {"wire", WireJson(r)},
          {"step", CountersJson(r.step)},
          {"prologue", CountersJson(r.prologue)},
          {"flops", FlopsJson(r)},
          {"machine", MachineJson(r)},
          {"time", TimeJson(r)},
          {"roofline", RooflineJson(r, ops)},
          {"choices", r.choices}};
}

}  // namespace millrace
