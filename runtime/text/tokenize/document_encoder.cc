#include "runtime/text/tokenize/document_encoder.h"

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

using nlohmann::json;

const std::string& FieldOf(const std::string& asked, const std::string& usual) {
  return asked.empty() ? usual : asked;
}

// The list of a line's ids: of the name that was asked for, else of the one of the usual names that
// is there.
const json& ListOf(const json& object, const std::string& asked, const std::string& where,
                   std::string& name) {
  const std::vector<std::string> usual = {"ids", "input_ids", "tokens", "token_ids"};
  name.clear();
  for (const std::string& one : asked.empty() ? usual : std::vector{asked}) {
    if (!object.contains(one)) continue;
    MR_REQUIRE(
        ErrorCode::kData, name.empty(),
        "{} has both \"{}\" and \"{}\"; which of them holds its ids has to be said (--field)",
        where, name, one);
    name = one;
  }
  MR_REQUIRE(ErrorCode::kData, !name.empty(), "{} has no \"{}\"", where,
             asked.empty() ? "ids\", \"input_ids\", \"tokens\" or \"token_ids" : asked);
  const json& list = object[name];
  MR_REQUIRE(ErrorCode::kData, list.is_array(), "{}: \"{}\" is {}; a list of ids is expected",
             where, name, list.type_name());
  return list;
}

int32_t IdOf(const json& value, int64_t vocab, const std::string& where, const std::string& name,
             size_t index) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < uint64_t(vocab);
  MR_REQUIRE(ErrorCode::kData, fits, "{}: {}[{}] is {}; ids are integers from 0 to {}", where, name,
             index, value.is_structured() ? value.type_name() : DumpJson(value, {.replace = true}),
             vocab - 1);
  return value.get<int32_t>();
}

}  // namespace

DocumentEncoder::DocumentEncoder(const Tokenizer* tokenizer, int64_t vocab,
                                 const DocumentOptions& options)
    : vocab_(vocab), options_(options) {
  MR_CHECK(tokenizer != nullptr || options.form == DocumentForm::kIds, "{} without a tokenizer",
           Name(options.form));
  if (options.form != DocumentForm::kIds)
    encoder_.emplace(*tokenizer, TextEncoder::kLargeCacheBytes);
}

EncodedDocuments DocumentEncoder::Encode(const TextBlock& block) {
  EncodedDocuments out;
  switch (options_.form) {
    case DocumentForm::kText:
      AddText(block, out);
      break;
    case DocumentForm::kIds:
      AddIds(block, out);
      break;
    case DocumentForm::kMessages:
      AddMessages(block, out);
      break;
  }
  return out;
}

void DocumentEncoder::EndDocument(EncodedDocuments& out) const {
  ++out.documents;
  if (!options_.separator) return;
  out.ids.push_back(*options_.separator);
  if (options_.form == DocumentForm::kMessages) out.mask.push_back(0);
}

void DocumentEncoder::AddText(const TextBlock& block, EncodedDocuments& out) {
  const EncodeOptions encoding = {options_.special, AroundText::kNothing};
  ForEachPart(block, FieldOf(options_.field, "text"), [&](const DocumentPart& part) {
    encoder_->Encode(part.text, encoding, out.ids);
    out.text_bytes += std::ssize(part.text);
    if (part.ends_document) EndDocument(out);
  });
}

void DocumentEncoder::AddIds(const TextBlock& block, EncodedDocuments& out) {
  ForEachLine(block, [&](const json& object, const LinePlace& place) {
    const std::string where = place.Words();
    std::string name;
    size_t index = 0;
    for (const json& value : ListOf(object, options_.field, where, name))
      out.ids.push_back(IdOf(value, vocab_, where, name, index++));
    EndDocument(out);
  });
}

void DocumentEncoder::AddMessages(const TextBlock& block, EncodedDocuments& out) {
  MaskedIds masked;
  ForEachLine(block, [&](const json& object, const LinePlace& place) {
    const std::string where = place.Words();
    const auto messages = ReadConversation(object, FieldOf(options_.field, "messages"), where);
    masked.ids.clear();
    masked.mask.clear();
    EncodeConversation(options_.chat, messages, *encoder_, where, masked);
    out.ids.insert(out.ids.end(), masked.ids.begin(), masked.ids.end());
    out.mask.insert(out.mask.end(), masked.mask.begin(), masked.mask.end());
    for (const LearnedMessage& one : messages) out.text_bytes += std::ssize(one.message.content);
    EndDocument(out);
  });
}

}  // namespace millrace
