// Whether a page that we wrote is what a browser will see: nothing that was
// shown may have become markup.
#pragma once

#include <string>
#include <string_view>

namespace millrace::fuzz {

// "" or the first thing that is wrong: text that is not UTF-8, a control character, "<" or "&" that
// is no tag and no reference of ours, an element or attribute that our pages do not use (href,
// on...), elements that do not nest, a script other than `code` and JSON.
std::string HtmlProblem(std::string_view page, std::string_view code = "");

}  // namespace millrace::fuzz
