// millrace config: schema, documentation, what a configuration amounts to.
#include <iostream>

#include "runtime/config/document.h"
#include "runtime/config/load.h"
#include "tools/cli/command.h"

namespace millrace {

int ConfigSchemaVerb() {
  std::cout << ConfigSchemaJson() << std::endl;
  return 0;
}

int ConfigDocsVerb() {
  std::cout << ConfigDocsMarkdown();
  return 0;
}

int ConfigShowVerb(const ConfigArguments& arguments, std::optional<int> world, bool json) {
  const LoadedConfig loaded = LoadHere(arguments, world);
  if (json) SayNotes(loaded);  // else they are part of what is shown
  std::cout << (json ? ConfigToJson(loaded.config) : ConfigShow(loaded)) << std::endl;
  return 0;
}

int ConfigValidateVerb(const ConfigArguments& arguments, std::optional<int> world) {
  SayNotes(LoadHere(arguments, world));
  std::cout << "valid" << std::endl;
  return 0;
}

}  // namespace millrace
