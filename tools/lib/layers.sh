# The dependency diagram of the root BUILD file as questions to `bazel query`. Sourced, not run; the working directory is the root.

# Targets of each layer. A backend is a layer of its own: only main programs name one.
declare -A layer_targets=(
  [base]='//runtime/base:all'
  [config]='//runtime/config/...'
  [data]='//runtime/data/...'
  [kernels_ops]='//kernels/ops/...'
  [kernels]='//kernels:all'
  [comm]='//comm:all'
  [backends]='//runtime/base/cpu/... + //runtime/base/cuda/... + //kernels/cpu/... + //kernels/cuda/... + //comm/local/... + //comm/mpi/... + //comm/nccl/... + //comm/peer/... + //comm/socket/...'
  [picture]='//runtime/picture/...'
  [plan]='//runtime/plan/...'
  [exec]='//runtime/exec/...'
  [text]='//runtime/text/...'
  [infer]='//runtime/infer/...'
  [serve]='//runtime/serve/...'
  [watch]='//runtime/watch/...'
  [record]='//runtime/record/...'
  [models]='//models/...'
  [run]='//runtime/run/...'
  [api]='//runtime/api/...'
  [tools]='//tools/...'
  [tests]='//tests/...'
)

# What each may depend on, itself aside. Kept apart from the BUILD file on purpose: a slip must be made twice to go unnoticed.
declare -A layer_may_use=(
  [base]=''
  [config]='base'
  [data]='base'
  [kernels_ops]='base'
  [kernels]='base kernels_ops'
  [comm]='base'
  [backends]='base kernels_ops kernels comm'
  [picture]='base'
  [text]='base data'
  [infer]='base'
  [serve]='base data text infer'
  [plan]='base kernels_ops picture'
  [models]='base config kernels_ops plan'
  [exec]='base config data kernels_ops kernels comm plan'
  [record]='base config data picture'
  [watch]='base config data kernels_ops kernels comm picture plan exec record'
  [run]='base config data kernels_ops kernels comm picture plan models exec text infer watch record'
  [api]='base config data kernels_ops kernels comm backends picture plan models exec text infer watch record run'
  [tools]='base config data kernels_ops kernels comm backends picture plan models exec text infer serve watch record run api'
)

# What Bazel links to every program under ASan must be visible to all of them; nothing names it as a dependency, which the first question asks.
linked_to_all=//tests/fuzz:no_coverage

# ExistingTargets PATTERNS: those of "a + b + ..." whose folder has packages, in the same form; query fails on others.
ExistingTargets() {
  local pattern folder result=
  for pattern in ${1//+/ }; do
    folder=${pattern#//}
    folder=${folder%/...}
    case $pattern in
      */...) [[ -n $(find "$folder" -name BUILD -print -quit 2>/dev/null) ]] || continue ;;
      *) [[ -e ${folder%:all}/BUILD ]] || continue ;;
    esac
    result+="${result:+ + }$pattern"
  done
  echo "$result"
}

# Prints each forbidden dependency that exists or that visibility would permit; fails if there is one.
CheckLayers() {
  local layer other from forbidden found bad=0 checked=0
  for layer in "${!layer_may_use[@]}"; do
    from=$(ExistingTargets "${layer_targets[$layer]}")
    [[ -n $from ]] || continue
    forbidden=
    for other in "${!layer_targets[@]}"; do
      [[ $other == "$layer" || " ${layer_may_use[$layer]} " == *" $other "* ]] || forbidden+=" + ${layer_targets[$other]}"
    done
    forbidden=$(ExistingTargets "$forbidden")
    [[ -n $forbidden ]] || continue
    checked=$((checked + 1))
    if ! found=$(Query "somepath($from, kind(rule, $forbidden))"); then
      echo "bazel query failed for layer '$layer'; see its message above" && return 1
    fi
    if [[ -n $found ]]; then
      echo "layer '$layer' depends on what it may not use:" $found
      bad=1
    fi
    # visible(x, y) is what all of x may see, so each package of the layer is asked for with one of its rules.
    found=$(VisibleToAny "$from" "($forbidden) except $linked_to_all")
    if [[ -n $found ]]; then
      echo "visibility would let layer '$layer' depend on:" $found
      bad=1
    fi
  done
  ((checked > 0)) || { echo "no layer exists"; return 1; }
  CheckNames || bad=1
  # Where tools/test looks for them with a sanitizer.
  found=$(Query 'tests(//...) except tests(//tests/...)') || return 1
  if [[ -n $found ]]; then
    echo "tests outside the folder tests:" $found
    bad=1
  fi
  return "$bad"
}

# Prints each class that two files of the program define. Where both are linked, the linker keeps one of two destructors that nobody
# wrote, and uses it for both classes: no error, and a broken heap.
CheckNames() {
  find comm kernels models runtime tools -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort | xargs awk '
    FNR == 1 { unnamed = 0 }
    /^namespace \{/ { unnamed = 1 }
    /^}  \/\/ namespace$/ { unnamed = 0 }
    /^namespace [a-z]/ { space = $2 }
    !unnamed && match($0, /^(class|struct|enum class|union) [A-Za-z0-9_]+( final)?( : .*)?( \{|$)/) {
      split(substr($0, 1, RLENGTH), word, " ")
      name = space "::" (word[1] == "enum" ? word[3] : word[2])
      if (name in file && file[name] != FILENAME) {
        print "two classes are named " name ": in " file[name] " and " FILENAME
        twice = 1
      }
      file[name] = FILENAME
    }
    END { exit twice }'
}

VisibleToAny() {
  local from=$1 forbidden=$2 package query=
  for package in $(Query "kind(rule, $from)" --output=package); do
    query+="${query:+ + }visible(//$package:all, kind(rule, $forbidden))"
  done
  [[ -z $query ]] || Query "$query"
}

Query() {
  local expression=$1
  shift
  bazel query --noshow_progress --ui_event_filters=-info,-debug,-warning "$@" "$expression"
}
