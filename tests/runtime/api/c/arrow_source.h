// A producer of Arrow's C stream interface for tests: record batches with columns of lists, as they
// are described, and a count of what was given and not released.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "runtime/api/c/millrace_arrow.h"

namespace millrace::test {

// A column of one record batch. Its array and that of its values may begin before what is meant.
struct ArrowLists {
  std::vector<int64_t> offsets;  // in values, one more than rows; not of fixed-size lists
  std::vector<uint8_t> values;   // their bytes
  int64_t value_count = 0;
  std::vector<uint8_t> row_bits, value_bits;  // 0: null; none: all are there
  int64_t offset = 0, value_offset = 0;
};

// Lists of `rows`, behind `skip` rows and values of zeros that are not meant.
template <class T>
ArrowLists ListsOf(const std::vector<std::vector<T>>& rows, int64_t skip = 0) {
  ArrowLists lists;
  lists.offset = lists.value_offset = skip;
  std::vector<T> all(static_cast<size_t>(skip));
  const size_t width = rows.empty() ? 0 : rows[0].size();
  all.resize(all.size() + static_cast<size_t>(skip) * width);
  for (int64_t i = 0; i <= skip; ++i) lists.offsets.push_back(i * static_cast<int64_t>(width));
  for (const std::vector<T>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
    lists.offsets.push_back(lists.offsets.back() + static_cast<int64_t>(row.size()));
  }
  lists.value_count = static_cast<int64_t>(all.size()) - skip;
  lists.values.resize(all.size() * sizeof(T));
  if (!all.empty()) std::memcpy(lists.values.data(), all.data(), lists.values.size());
  return lists;
}

struct ArrowSource {
  struct Column {
    std::string name, format, values;
  };
  struct Records {
    int64_t rows = 0, offset = 0;
    std::vector<ArrowLists> columns;
    std::vector<uint8_t> row_bits;
  };
  std::vector<Column> columns;
  std::vector<Records> records;
  std::string format = "+s";
  size_t fails_at = ~size_t{0};          // get_next of this number
  size_t out_of_memory_at = ~size_t{0};  // the same, and once
  size_t shift = 0;                      // bytes between an aligned address and offsets or values
  bool schema_fails = false;
  const char* last_error = nullptr;
  int64_t live = 0;  // schemas, record batches and streams that are not released
  size_t given = 0;

  ArrowArrayStream Stream() {
    ++live;
    return {.get_schema = GetSchema,
            .get_next = GetNext,
            .get_last_error = [](ArrowArrayStream* s) { return Of(s).last_error; },
            .release =
                [](ArrowArrayStream* s) {
                  --Of(s).live;
                  s->release = nullptr;
                },
            .private_data = this};
  }

 private:
  static ArrowSource& Of(ArrowArrayStream* s) {
    return *static_cast<ArrowSource*>(s->private_data);
  }
  static void Released(ArrowArray* array) { array->release = nullptr; }

  static int GetSchema(ArrowArrayStream* stream, ArrowSchema* out) {
    struct Owned {
      ArrowSource* source;
      std::vector<ArrowSchema> lists, values;
      std::vector<ArrowSchema*> children, list_children;
    };
    ArrowSource& self = Of(stream);
    if (self.schema_fails) return EIO;
    ++self.live;
    const size_t count = self.columns.size();
    auto* const owned =
        new Owned{&self, std::vector<ArrowSchema>(count), std::vector<ArrowSchema>(count), {}, {}};
    owned->list_children.resize(count);
    for (size_t c = 0; c < count; ++c) {
      owned->values[c].format = self.columns[c].values.c_str();
      owned->values[c].name = "item";
      owned->list_children[c] = &owned->values[c];
      owned->lists[c].format = self.columns[c].format.c_str();
      owned->lists[c].name = self.columns[c].name.c_str();
      owned->lists[c].n_children = self.columns[c].format.starts_with('+') ? 1 : 0;
      owned->lists[c].children = &owned->list_children[c];
      owned->children.push_back(&owned->lists[c]);
    }
    *out = {};
    out->format = self.format.c_str();
    out->n_children = static_cast<int64_t>(count);
    out->children = owned->children.data();
    out->private_data = owned;
    out->release = [](ArrowSchema* schema) {
      auto* const of = static_cast<Owned*>(schema->private_data);
      --of->source->live;
      delete of;
      schema->release = nullptr;
    };
    return 0;
  }

  static int GetNext(ArrowArrayStream* stream, ArrowArray* out) {
    struct Owned {
      ArrowSource* source;
      std::vector<ArrowArray> lists, values;
      std::vector<ArrowArray*> children, list_children;
      std::vector<std::vector<int32_t>> offsets;
      std::vector<std::vector<uint8_t>> shifted;
      std::vector<const void*> buffers;
    };
    ArrowSource& self = Of(stream);
    *out = {};
    if (self.given == self.fails_at) return EIO;
    if (self.given == self.out_of_memory_at) {
      self.out_of_memory_at = ~size_t{0};
      throw std::bad_alloc();
    }
    if (self.given == self.records.size()) return 0;
    const Records& from = self.records[self.given++];
    ++self.live;
    const size_t count = from.columns.size();
    auto* const owned = new Owned{
        &self, std::vector<ArrowArray>(count), std::vector<ArrowArray>(count), {}, {}, {}, {}, {}};
    owned->list_children.resize(count);
    owned->offsets.resize(count);
    owned->buffers.resize(4 * count + 1);
    const auto bits = [](const std::vector<uint8_t>& of) {
      return of.empty() ? nullptr : of.data();
    };
    const auto shifted = [&]<class T>(const std::vector<T>& of) -> const void* {
      if (self.shift == 0) return of.data();
      const size_t bytes = of.size() * sizeof(T);
      uint8_t* const copy = owned->shifted.emplace_back(self.shift + bytes).data() + self.shift;
      if (bytes > 0) std::memcpy(copy, of.data(), bytes);
      return copy;
    };
    owned->buffers[4 * count] = bits(from.row_bits);
    for (size_t c = 0; c < count; ++c) {
      const ArrowLists& column = from.columns[c];
      const void** const buffers = &owned->buffers[4 * c];
      const bool is_fixed = self.columns[c].format.starts_with("+w");
      owned->offsets[c].assign(column.offsets.begin(), column.offsets.end());
      buffers[0] = bits(column.row_bits);
      buffers[1] =
          self.columns[c].format == "+l" ? shifted(owned->offsets[c]) : shifted(column.offsets);
      buffers[2] = bits(column.value_bits);
      buffers[3] = shifted(column.values);
      owned->values[c] = {.length = column.value_count,
                          .null_count = -1,
                          .offset = column.value_offset,
                          .n_buffers = 2,
                          .n_children = 0,
                          .buffers = buffers + 2,
                          .children = nullptr,
                          .dictionary = nullptr,
                          .release = Released,
                          .private_data = nullptr};
      owned->list_children[c] = &owned->values[c];
      owned->lists[c] = owned->values[c];
      owned->lists[c].length = from.offset + from.rows;
      owned->lists[c].offset = column.offset;
      owned->lists[c].n_buffers = is_fixed ? 1 : 2;
      owned->lists[c].buffers = buffers;
      owned->lists[c].n_children = 1;
      owned->lists[c].children = &owned->list_children[c];
      owned->children.push_back(&owned->lists[c]);
    }
    out->length = from.rows;
    out->null_count = -1;
    out->offset = from.offset;
    out->n_buffers = 1;
    out->buffers = &owned->buffers[4 * count];
    out->n_children = static_cast<int64_t>(count);
    out->children = owned->children.data();
    out->private_data = owned;
    out->release = [](ArrowArray* array) {
      auto* const of = static_cast<Owned*>(array->private_data);
      --of->source->live;
      delete of;
      array->release = nullptr;
    };
    return 0;
  }
};

}  // namespace millrace::test
