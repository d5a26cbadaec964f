#include "runtime/plan/report/plan_text.h"

#include <fmt/format.h>  // format_to; libfmt has it by g++'s name alone, which clang's is not

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

#include "runtime/picture/text.h"

namespace millrace {
namespace {

constexpr size_t kColumns = 100;

std::string Percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : "-";
}

// Paragraph broken at spaces, later lines indented by `indent`.
std::string Wrapped(const std::string& text, size_t indent) {
  std::string out;
  size_t column = indent, begin = 0;
  while (begin < text.size()) {
    size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    if (column > indent && column + 1 + (end - begin) > kColumns) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    out += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return out;
}

// "h.3/ln_1: ... h.2/add" -> "h.*/ln_1: ... h.*/add": one line for all layers.
std::string AnyLayer(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    out += text[i];
    const bool unit =
        text[i] == '.' && i > 0 && text[i - 1] == 'h' && (i == 1 || text[i - 2] == ' ');
    if (!unit || i + 1 == text.size() || !std::isdigit(static_cast<unsigned char>(text[i + 1])))
      continue;
    out += '*';
    while (i + 1 < text.size() &&
           (std::isdigit(static_cast<unsigned char>(text[i + 1])) || text[i + 1] == '-'))
      ++i;
  }
  return out;
}

class Writer {
 public:
  explicit Writer(const PlanReport& report) : r_(report) {}

  std::string Write() {
    Header();
    Memory();
    Wire();
    Time();
    Kinds();
    Notes();
    return std::move(text_);
  }

 private:
  template <class... Args>
  void Line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void Title(std::string_view title) { Line("\n{}\n{}", title, std::string(title.size(), '-')); }
  void Row(std::string_view key, const std::string& value) {
    Line("  {:<24}{}", key, Wrapped(value, 26));
  }

  void Header() {
    const ModelFigures& m = r_.model;
    Line("Millrace plan {}  ({}, {})", r_.hash, r_.kind, r_.execution);
    Title("Model and batch");
    const ModelShape& shape = m.shape;
    std::string blocks;
    if (const EqualBlock equal = EqualBlockOf(shape))
      blocks = fmt::format("{} heads ({} kv) of {}, ffn {}", equal.attention->heads,
                           equal.attention->kv_heads, equal.attention->head_dim, equal.mlp->width);
    else
      for (const BlockRun& run : RunsOf(shape.blocks))
        blocks += fmt::format("{}{} of {}", run.first == 0 ? "" : ", ", run.count,
                              ToString(shape.blocks[static_cast<size_t>(run.first)]));
    Row("model", fmt::format("{}: {} layers, width {}, {}, vocabulary {}", shape.family,
                             shape.layers(), shape.d_model, blocks, shape.vocab));
    Row("parameters",
        fmt::format("{} ({} in matmuls)", CountText(static_cast<double>(m.parameters)),
                    CountText(static_cast<double>(m.matmul_parameters))));
    Row("ranks", fmt::format("{} = {}", r_.world, ToString(r_.mesh)));
    const int data_ranks = r_.mesh.data_ranks();
    std::string of = "rank";
    if (data_ranks != r_.world) {
      of = "data rank";
      Row("data ranks", fmt::format("{} of {} each, which read the same sequences", data_ranks,
                                    DataRankInWords(r_.mesh)));
    }
    Row("batch", fmt::format("{} sequences of {} per {}, accumulated {} times: {} tokens per step",
                             r_.shape.batch, r_.shape.seq, of, r_.accumulate, r_.tokens_per_step));
    std::string options;
    for (const auto& [key, value] : r_.options)
      options += (options.empty() ? "" : ", ") + key + "=" + value;
    Row("options", options);
  }

  // Nothing about a run that neither recomputes nor asks whether it must.
  void Recomputed() {
    const RecomputeFigures& again = r_.recompute;
    if (again.ops == 0 && !again.searched) return;
    std::string text = (again.searched ? "auto: " : "") + ToString(again.counts);
    if (again.ops > 0 && again.searched)
      text += fmt::format("; {} less", BytesText(again.saved_bytes));
    if (again.ops > 0)
      text += fmt::format("; {} ops more, {}", again.ops, SecondsText(again.seconds));
    Row("recomputed", text);
  }

  // Of what exchanges bring the backward needs again.
  void Exchanges() {
    const KeptExchanges& e = r_.recompute.exchanges;
    if (e.all == 0) return;
    std::string text = fmt::format("{} of {} a microbatch", e.kept, e.all);
    if (e.kept > 0)
      text += fmt::format(" from forward to backward: {} held, {} less on the wire",
                          BytesText(e.held_bytes), BytesText(e.wire_bytes));
    Row("exchanges kept", text);
  }

  void Memory() {
    const MemoryFigures& m = r_.memory;
    Title("Memory of one rank");
    Line("  {:<24}{:>12}{:>14}{:>10}", "class", "its peak", "at the peak", "share");
    int64_t sum = 0;
    for (int64_t bytes : m.at_peak) sum += bytes;
    for (size_t c = 0; c < m.by_class.size(); ++c)
      Line("  {:<24}{:>12}{:>14}{:>10}", Name(static_cast<BufferClass>(c)),
           BytesText(m.by_class[c]), BytesText(m.at_peak[c]),
           Percent(static_cast<double>(m.at_peak[c]), static_cast<double>(sum)));
    Line("  {:<24}{:>12}{:>14}", "all", "", BytesText(sum));
    Row("arena",
        fmt::format("{}, lower bound {} ({} above)", BytesText(m.arena), BytesText(m.lower_bound),
                    Percent(static_cast<double>(m.arena - m.lower_bound),
                            static_cast<double>(m.lower_bound))));
    Recomputed();
    Exchanges();
    if (m.run_arena > m.arena)
      Row("arena of the run", BytesText(m.run_arena) + ": another plan of the run needs more");
    if (m.device > 0) {
      Row("device", fmt::format("{}: {} beside the arena for context, libraries and communicators",
                                BytesText(m.device), BytesText(m.device - m.run_arena)));
      if (m.device_has > 0 && m.device > m.device_has)
        Row("does not fit",
            fmt::format(
                "such a device has {}; try memory.recompute=auto, a smaller train.micro_batch or "
                "more ranks",
                BytesText(m.device_has)));
    }
    if (m.parameter_pool + m.gradient_pool > 0)
      Row("bucket pools", fmt::format("parameters {}, gradients {}", BytesText(m.parameter_pool),
                                      BytesText(m.gradient_pool)));
    if (m.received > 0)
      Row("receive buffer",
          fmt::format("{} for rows that other ranks send to experts, the most that can come; for "
                      "each exchange, and free behind it",
                      BytesText(m.received)));
    Row("persistent", BytesText(m.persistent));
    Row("checkpoint",
        fmt::format("{} in all, {} per writing rank, which as much host memory holds while it is "
                    "written (checkpoint.asynchronous)",
                    BytesText(m.checkpoint), BytesText(m.checkpoint_per_rank)));
  }

  void Wire() {
    const PlanCounters& s = r_.step;
    Title("Sent by one rank in one step");
    Line("  {:<24}{:>12}{:>14}", "collective", "count", "bytes");
    Line("  {:<24}{:>12}{:>14}", "all-gather", s.all_gathers, BytesText(s.gathered_bytes));
    Line("  {:<24}{:>12}{:>14}", "reduce-scatter", s.reduce_scatters, BytesText(s.reduced_bytes));
    Line("  {:<24}{:>12}{:>14}", "all-reduce", s.all_reduces, BytesText(s.all_reduced_bytes));
    if (s.all_to_alls > 0)
      Line("  {:<24}{:>12}{:>14}", "all-to-all", s.all_to_alls, BytesText(s.exchanged_bytes));
    Row("purpose",
        fmt::format("parameters {}, gradients {}, gradients between replicas {}, statistics {}",
                    BytesText(r_.wire.parameters), BytesText(r_.wire.gradients),
                    BytesText(r_.wire.gradient_replicas), BytesText(r_.wire.statistics)) +
            (r_.wire.exchanges > 0 ? ", exchanged rows " + BytesText(r_.wire.exchanges) : ""));
    if (r_.wire.parameters_as.contains(DType::kE4M3)) {
      std::string as;
      for (const auto& [dtype, bytes] : r_.wire.parameters_as)
        as += fmt::format("{}{} {}", as.empty() ? "" : ", ", Name(dtype), BytesText(bytes));
      Row("parameters as", as);
    }
    Row("moved in memory",
        fmt::format("concatenated {}, cast {}, copied {}", BytesText(s.concatenated_bytes),
                    BytesText(s.cast_bytes), BytesText(s.copied_bytes)));
  }

  static std::string ByStream(const TimeFigures& t, const std::array<double, kStreams>& seconds,
                              int first) {
    std::string text;
    for (int s = first; s < Timeline::StreamsShown(t.busy); ++s)
      text += fmt::format("{}{} {}", s == first ? "" : ", ", Name(static_cast<StreamId>(s)),
                          SecondsText(seconds[static_cast<size_t>(s)]));
    return text;
  }

  void Time() {
    const TimeFigures& t = r_.time;
    const double tokens = static_cast<double>(r_.tokens_per_step) / r_.world;
    Title("Time of a step on " + r_.machine.name);
    const std::string& measured = r_.machine.measured;
    Row("machine", r_.machine.title + (measured.empty() ? "" : "; measured: " + measured));
    Row("step",
        fmt::format("{}{}: {} ops, {} of op time in all", SecondsText(t.step),
                    measured.empty() ? " at best (no measured machine file: doctor --measure)" : "",
                    r_.step.ops, SecondsText(t.roofline)));
    const double exposed = Timeline::ExposedTotal(t.exposed);
    Row("exposed communication", fmt::format("{} ({} of the step): {}", SecondsText(exposed),
                                             Percent(exposed, t.step), ByStream(t, t.exposed, 1)));
    Row("streams busy", ByStream(t, t.busy, 0));
    Row("tokens/s", fmt::format("{}, {} per rank", CountText(t.tokens_per_second),
                                CountText(t.tokens_per_second / r_.world)));
    Row("MFU", fmt::format("{:.1f}% causal, {:.1f}% full, of {}FLOP/s", 100 * t.mfu_causal,
                           100 * t.mfu_full, CountText(t.peak_flops)));
    Row("FLOPs of one rank",
        fmt::format("model {} causal, {} full; ops {}",
                    CountText(r_.flops_per_token_causal * tokens),
                    CountText(r_.flops_per_token_full * tokens), CountText(r_.op_flops)));
    Row("", "per token 6*N + c*layers*heads*head_dim*T; c = 6 causal, 12 full");
    const bool fp8 = r_.options.contains("precision.linear");
    const std::string of_fp8 = fp8 ? CountText(r_.machine.gemm(DType::kE4M3)) + "FLOP/s FP8, " : "";
    Row("rates",
        fmt::format("GEMM {}{}FLOP/s bf16, {}FLOP/s f32; memory {}B/s; link {}B/s + {}", of_fp8,
                    CountText(r_.machine.gemm_bf16), CountText(r_.machine.gemm_f32),
                    CountText(r_.machine.memory), CountText(r_.machine.link),
                    SecondsText(r_.machine.collective_latency)));
    if (const Machine& m = r_.machine; m.ranks_per_host > 0 && r_.world > m.ranks_per_host)
      Row("between hosts", fmt::format("{} ranks to a host, {}B/s from each to other hosts",
                                       m.ranks_per_host, CountText(m.host_link)));
  }

  void Kinds() {
    Title("Roofline by kind of op");
    Line("  {:<18}{:>8}{:>12}{:>8}{:>12}{:>12}{:>12}  {}", "op", "count", "time", "share", "FLOPs",
         "memory", "wire", "bound");
    for (const KindFigures& kind : r_.kinds)
      Line("  {:<18}{:>8}{:>12}{:>8}{:>12}{:>12}{:>12}  {}", kind.kind, kind.count,
           SecondsText(kind.sum.seconds), Percent(kind.sum.seconds, r_.time.roofline),
           CountText(kind.sum.flops), BytesText(kind.sum.read_bytes + kind.sum.write_bytes),
           BytesText(kind.sum.wire_bytes), Name(kind.sum.bound));
  }

  void Notes() {
    Title("Choices");
    std::vector<std::pair<std::string, int>> groups;
    for (const std::string& choice : r_.choices) {
      const std::string pattern = AnyLayer(choice);
      const auto it = std::find_if(groups.begin(), groups.end(),
                                   [&](const auto& group) { return group.first == pattern; });
      if (it == groups.end())
        groups.emplace_back(pattern, 1);
      else
        ++it->second;
    }
    for (const auto& [pattern, count] : groups)
      Line("  {}", Wrapped(count > 1 ? fmt::format("{} ({} times)", pattern, count) : pattern, 4));
  }

  const PlanReport& r_;
  std::string text_;
};

}  // namespace

std::string PlanReportText(const PlanReport& report) { return Writer(report).Write(); }

}  // namespace millrace
