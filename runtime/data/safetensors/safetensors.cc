#include "runtime/data/safetensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/float16.h"
#include "runtime/base/json.h"
#include "runtime/data/strict_json.h"

namespace millrace {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors data is read as it lies");

constexpr int64_t kLargestHeader = 100'000'000;  // the limit of the reference implementation
constexpr int64_t kMostDims = 64;
constexpr int kHeaderDepth = 3;
constexpr const char* kMetadataKey = "__metadata__";

constexpr std::array<std::pair<std::string_view, int64_t>, 15> kDTypes = {{{"F64", 8},
                                                                           {"I64", 8},
                                                                           {"U64", 8},
                                                                           {"F32", 4},
                                                                           {"I32", 4},
                                                                           {"U32", 4},
                                                                           {"F16", 2},
                                                                           {"BF16", 2},
                                                                           {"I16", 2},
                                                                           {"U16", 2},
                                                                           {"I8", 1},
                                                                           {"U8", 1},
                                                                           {"BOOL", 1},
                                                                           {"F8_E4M3", 1},
                                                                           {"F8_E5M2", 1}}};

// Product of the dims; -1 on overflow, a negative dim, or too many of them.
int64_t Numel(const std::vector<int64_t>& shape) {
  if (int64_t(shape.size()) > kMostDims) return -1;
  int64_t numel = 1;
  // A zero dim must not hide an overflow before it: other readers may multiply in another order.
  for (const int64_t dim : shape)
    if (dim < 0 || __builtin_mul_overflow(numel, std::max<int64_t>(dim, 1), &numel)) return -1;
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? numel : 0;
}

// Reads n elements of type In from `offset` and writes convert(element) to out.
template <typename In, typename Convert>
void ReadConverted(const InputFile& file, int64_t offset, int64_t n, float* out, Convert convert) {
  constexpr int64_t kChunk = 16384;
  std::vector<In> chunk(static_cast<size_t>(std::min(n, kChunk)));
  for (int64_t done = 0; done < n; done += kChunk) {
    const int64_t length = std::min(kChunk, n - done);
    file.Read(offset + done * int64_t{sizeof(In)}, chunk.data(), length * int64_t{sizeof(In)});
    for (int64_t i = 0; i < length; ++i) out[done + i] = convert(chunk[static_cast<size_t>(i)]);
  }
}

TensorInfo ParseTensor(const std::string& name, const json& entry, const JsonOrigin& origin) {
  MR_REQUIRE(origin.code, entry.is_object(), "{}: expected an object, got {}", origin.name,
             entry.type_name());
  for (const auto& [key, value] : entry.items())
    MR_REQUIRE(origin.code, key == "dtype" || key == "shape" || key == "data_offsets",
               "{}: unknown key \"{}\"; known are dtype, shape and data_offsets", origin.name, key);
  TensorInfo tensor;
  tensor.spec = {.name = name, .dtype = JsonString(entry, "dtype", origin), .shape = {}};
  const int64_t element_bytes = SafetensorsElementBytes(tensor.spec.dtype);
  MR_REQUIRE(origin.code, element_bytes > 0, "{}: unknown dtype \"{}\"", origin.name,
             tensor.spec.dtype);

  const json& shape = JsonField(entry, "shape", origin);
  MR_REQUIRE(origin.code, shape.is_array() && int64_t(shape.size()) <= kMostDims,
             "{}: shape must be an array of at most {} dims", origin.name, kMostDims);
  for (const json& dim : shape) tensor.spec.shape.push_back(JsonCount(dim, origin));
  tensor.numel = Numel(tensor.spec.shape);
  MR_REQUIRE(
      origin.code,
      tensor.numel >= 0 && !__builtin_mul_overflow(tensor.numel, element_bytes, &tensor.bytes),
      "{}: shape {} has too many elements", origin.name, DumpJson(shape));

  const json& offsets = JsonField(entry, "data_offsets", origin);
  MR_REQUIRE(origin.code, offsets.is_array() && offsets.size() == 2,
             "{}: data_offsets must be [begin, end]", origin.name);
  tensor.offset = JsonCount(offsets[0], origin);
  const int64_t end = JsonCount(offsets[1], origin);
  MR_REQUIRE(origin.code, end >= tensor.offset && end - tensor.offset == tensor.bytes,
             "{}: data_offsets [{}, {}] are not the {} bytes that {} of shape {} takes",
             origin.name, tensor.offset, end, tensor.bytes, tensor.spec.dtype, DumpJson(shape));
  return tensor;
}

}  // namespace

int64_t SafetensorsElementBytes(const std::string& dtype) {
  for (const auto& [name, bytes] : kDTypes)
    if (name == dtype) return bytes;
  return 0;
}

std::string SafetensorsName(DType dtype) {
  std::string name(Name(dtype));
  for (char& c : name) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return name;
}

SafetensorsFile::SafetensorsFile(std::string path, ErrorCode code)
    : file_(std::move(path), code), code_(code) {
  const int64_t size = file_.size();
  MR_REQUIRE(code, size >= 8, "{} has {} bytes; a safetensors file has at least 8", this->path(),
             size);
  uint64_t header_bytes = 0;
  file_.Read(0, &header_bytes, 8);
  MR_REQUIRE(code, header_bytes >= 2 && header_bytes <= uint64_t{kLargestHeader},
             "{}: the header's size is {}; 2 to {} bytes are allowed: not a safetensors file?",
             this->path(), header_bytes, kLargestHeader);
  const int64_t data_start = 8 + static_cast<int64_t>(header_bytes);
  MR_REQUIRE(code, data_start <= size, "{} has {} bytes, but its header alone takes {}: truncated?",
             this->path(), size, data_start);
  std::string text(header_bytes, '\0');
  file_.Read(8, text.data(), data_start - 8);
  MR_REQUIRE(code, text[0] == '{',
             "{}: the header does not start with '{{': not a safetensors file?", this->path());
  ParseHeader(text, data_start);
}

void SafetensorsFile::ParseHeader(const std::string& text, int64_t data_start) {
  const json header = ParseStrictJson(text, kHeaderDepth, {path() + ": header", code_});
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadataKey) {
      const JsonOrigin origin{path() + ": " + kMetadataKey, code_};
      MR_REQUIRE(code_, entry.is_object(), "{}: expected an object", origin.name);
      for (const auto& [key, value] : entry.items())
        metadata_[key] = JsonString(entry, key, origin);
      continue;
    }
    tensors_.push_back(ParseTensor(name, entry, {path() + ": tensor \"" + name + "\"", code_}));
  }
  // Empty tensors may share an offset with the one that follows.
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  int64_t end = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TensorInfo& tensor = tensors_[i];
    MR_REQUIRE(code_, tensor.offset == end,
               "{}: tensor \"{}\" starts at byte {} of the data; {} ends at {}: {}", path(),
               tensor.spec.name, tensor.offset,
               i == 0 ? "nothing" : "\"" + tensors_[i - 1].spec.name + "\"", end,
               tensor.offset < end ? "they overlap" : "there is a hole");
    end += tensor.bytes;  // offset + bytes was an int64 in the file, and offset == end
    by_name_[tensor.spec.name] = i;
  }
  const int64_t data_bytes = file_.size() - data_start;
  MR_REQUIRE(code_, end == data_bytes,
             "{}: its tensors take {} bytes of data, but the file has {}: {}", path(), end,
             data_bytes, end > data_bytes ? "truncated?" : "something follows them");
  for (TensorInfo& tensor : tensors_)
    tensor.offset += data_start;  // cannot overflow: all lie inside the file
}

const TensorInfo* SafetensorsFile::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& SafetensorsFile::Tensor(const std::string& name) const {
  const TensorInfo* tensor = Find(name);
  MR_REQUIRE(code_, tensor != nullptr, "{} has no tensor \"{}\"", path(), name);
  return *tensor;
}

void SafetensorsFile::ReadFloats(const TensorInfo& tensor, int64_t begin, int64_t n,
                                 float* out) const {
  MR_CHECK(begin >= 0 && n >= 0 && begin <= tensor.numel && n <= tensor.numel - begin,
           "elements {} to {} of {} in \"{}\"", begin, begin + n, tensor.numel, tensor.spec.name);
  const std::string& dtype = tensor.spec.dtype;
  const int64_t offset = tensor.offset + begin * SafetensorsElementBytes(dtype);
  if (dtype == "F32") return file_.Read(offset, out, n * 4);
  if (dtype == "BF16")
    return ReadConverted<BFloat16>(file_, offset, n, out, [](BFloat16 v) { return ToFloat(v); });
  if (dtype == "F16")
    return ReadConverted<Float16>(file_, offset, n, out, [](Float16 v) { return ToFloat(v); });
  MR_REQUIRE(code_, dtype == "F64",
             "{}: tensor \"{}\" is {}; F64, F32, F16 and BF16 can be read as numbers", path(),
             tensor.spec.name, dtype);
  ReadConverted<double>(file_, offset, n, out, [](double v) { return static_cast<float>(v); });
}

void SafetensorsFile::ReadBytes(const TensorInfo& tensor, int64_t begin, int64_t n,
                                void* out) const {
  MR_CHECK(begin >= 0 && n >= 0 && begin <= tensor.bytes && n <= tensor.bytes - begin,
           "bytes {} to {} of {} in \"{}\"", begin, begin + n, tensor.bytes, tensor.spec.name);
  file_.Read(tensor.offset + begin, out, n);
}

SafetensorsLayout PlanSafetensors(const std::vector<TensorSpec>& specs,
                                  const std::map<std::string, std::string>& metadata) {
  constexpr ErrorCode kCode = ErrorCode::kInvalidArgument;
  SafetensorsLayout layout;
  std::set<std::string> names;
  for (const TensorSpec& spec : specs) {
    TensorInfo tensor{.spec = spec, .numel = Numel(spec.shape)};
    const int64_t element_bytes = SafetensorsElementBytes(spec.dtype);
    MR_REQUIRE(kCode, spec.name != kMetadataKey && names.insert(spec.name).second,
               "tensor name \"{}\" is reserved or given twice", spec.name);
    MR_REQUIRE(kCode, element_bytes > 0, "tensor \"{}\": unknown dtype \"{}\"", spec.name,
               spec.dtype);
    MR_REQUIRE(
        kCode,
        tensor.numel >= 0 && !__builtin_mul_overflow(tensor.numel, element_bytes, &tensor.bytes),
        "tensor \"{}\": a negative dim, too many dims, or too many elements", spec.name);
    layout.tensors.push_back(std::move(tensor));
  }
  std::vector<size_t> order(specs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return SafetensorsElementBytes(specs[a].dtype) > SafetensorsElementBytes(specs[b].dtype);
  });

  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  int64_t end = 0;
  for (const size_t i : order) {
    TensorInfo& tensor = layout.tensors[i];
    tensor.offset = end;
    MR_REQUIRE(kCode, !__builtin_add_overflow(end, tensor.bytes, &end),
               "the tensors up to \"{}\" exceed 2^63 bytes", tensor.spec.name);
    header[tensor.spec.name] = {{"dtype", tensor.spec.dtype},
                                {"shape", tensor.spec.shape},
                                {"data_offsets", {tensor.offset, end}}};
  }
  std::string text;
  try {
    text = DumpJson(header);
  } catch (const json::exception& error) {
    throw Error(kCode,
                fmt::format("a tensor name or metadata text is not UTF-8: {}", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  MR_REQUIRE(kCode, int64_t(text.size()) <= kLargestHeader,
             "the safetensors header would have {} bytes, at most {}", text.size(), kLargestHeader);
  const uint64_t header_bytes = text.size();
  layout.header.resize(8);
  std::memcpy(layout.header.data(), &header_bytes, 8);
  layout.header += text;
  const int64_t data_start = static_cast<int64_t>(layout.header.size());
  for (TensorInfo& tensor : layout.tensors) tensor.offset += data_start;
  MR_REQUIRE(kCode, !__builtin_add_overflow(end, data_start, &layout.file_bytes),
             "the tensors exceed 2^63 bytes");
  return layout;
}

}  // namespace millrace
