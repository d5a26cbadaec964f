// The functions of mr_rows: arguments in, exceptions ended, results out.
#include <fmt/core.h>

#include <limits>
#include <memory>
#include <mutex>

#include "runtime/api/c/arrow_rows.h"
#include "runtime/api/c/handle_table.h"
#include "runtime/api/c/millrace.h"
#include "runtime/api/c/sized.h"
#include "runtime/api/c/status.h"

using millrace::ArrowRows;
using millrace::CallError;
using millrace::Guarded;
using millrace::HandleTable;

mr_status* mr_rows_open(ArrowArrayStream* stream, int64_t row_tokens, mr_rows** out) {
  if (out != nullptr) *out = nullptr;
  return Guarded([&] {
    if (stream == nullptr || stream->release == nullptr)
      throw CallError(MR_INVALID_ARGUMENT,
                      stream == nullptr ? "stream is NULL" : "stream is released already");
    if (row_tokens < 2 || row_tokens > std::numeric_limits<int32_t>::max())
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("row_tokens is {}; allowed is 2 to 2147483647", row_tokens));
    if (out == nullptr) throw CallError(MR_INVALID_ARGUMENT, "out is NULL");
    *out =
        HandleTable<mr_rows, ArrowRows>::Get().Add(std::make_shared<ArrowRows>(stream, row_tokens));
  });
}

mr_status* mr_rows_next(mr_rows* rows, int64_t sequences, mr_batch* batch) {
  return Guarded([&] {
    const auto opened = HandleTable<mr_rows, ArrowRows>::Get().Require(rows, "rows");
    millrace::RequireSized(batch, "batch");
    if (sequences < 1)
      throw CallError(MR_INVALID_ARGUMENT,
                      fmt::format("sequences is {}; allowed is 1 or more", sequences));
    const std::lock_guard lock(opened->one_call);
    millrace::WriteSized(opened->Next(sequences), batch);
  });
}

void mr_rows_free(mr_rows* rows) { HandleTable<mr_rows, ArrowRows>::Get().Remove(rows); }
