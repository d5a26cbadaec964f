#!/bin/bash
# hardening_test.sh PROGRAM LIBRARY...: that the program which is shipped is position-independent, resolves its symbols before it starts
# and makes them read-only, has no executable stack, and calls the checked functions; that an archive of each layer checks containers.
set -euo pipefail
program=$1
shift
failed=0
# Expect WHAT PATTERN TEXT
Expect() {
  grep -Eq "$2" <<<"$3" && return 0
  echo "FAILED: $1: no line matches '$2' in:"
  echo "$3"
  failed=1
}
headers=$(readelf --wide --file-header --program-headers "$program")
dynamic=$(readelf --wide --dynamic "$program")
symbols=$(readelf --wide --dyn-syms "$program")
Expect "position-independent" 'Type: +DYN .*Position-Independent Executable' "$headers"
Expect "position-independent" 'FLAGS_1.*PIE' "$dynamic"
Expect "symbols resolved at start" 'FLAGS_1.*NOW' "$dynamic"
Expect "read-only relocations" 'GNU_RELRO' "$headers"
Expect "no executable stack" 'GNU_STACK .* RW +0x' "$headers"
Expect "stack protector" 'UND __stack_chk_fail' "$symbols"
Expect "fortified functions" 'UND __[a-z]+_chk' "$symbols"
Expect "containers' assertions" 'UND _ZSt21__glibcxx_assert_failPKciS0_S0_' "$symbols"
layers=
for library in "$@"; do
  [[ $library == *.a ]] || continue
  layers+=" ${library%%/*}"
  Expect "$library: containers' assertions" 'U _ZSt21__glibcxx_assert_failPKciS0_S0_' "$(nm --undefined-only "$library")"
done
[[ $layers == " comm kernels models runtime tools" ]] || {
  echo "FAILED: archives of these layers:$layers"
  failed=1
}
((failed == 0))
