// millrace config: schema, documentation, what a configuration amounts to.
#include <iostream>

#include "runtime/api/exchange.h"
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

int ConfigShowVerb(const ConfigArguments& arguments, bool json) {
  const LoadedConfig loaded = LoadRunConfig(arguments.files, arguments.sets, {});
  std::cout << (json ? ConfigToJson(loaded.config) : ConfigShow(loaded)) << std::endl;
  return 0;
}

int ConfigValidateVerb(const ConfigArguments& arguments, std::optional<int> world) {
  ConfigContext context;
  if (world) context.world = *world;
  LoadRunConfig(arguments.files, arguments.sets, context);
  std::cout << "valid" << std::endl;
  return 0;
}

}  // namespace millrace
