#!/bin/bash
# two_hosts_gpu.sh [OUT]: one rank on each of two "hosts" of one machine, a GPU each: network namespaces with own host names, joined by a
# virtual cable, so that NCCL must use sockets. Run from an unpacked package (tools/package), as root or where user namespaces are allowed,
# on a machine with two GPUs or more. About a minute. OUT (a new folder) keeps what the runs said.
#
# 20 steps of a small GPT-2, deterministic, without peers' memory: once by mpirun on the machine as it is, once on the two hosts. Prints
#   PASS                      the same losses and final hashes, and NCCL's own log has NET/Socket between the two and no other transport
#   FAIL: REASON              exit code 1
#   skipped: REASON           exit code 0: nothing was tried, and nothing is proven
# Everything runs in namespaces that end with this script; the machine's own network is neither used nor changed.
set -uo pipefail

program=$PWD/bin/millrace
config=configs/gpt2_30m.json

Skip() { echo "skipped: $*"; exit 0; }
Fail() { echo "FAIL: $*"; exit 1; }

# The outer namespaces: --kill-child ends all that is inside when this script ends.
if [[ -z ${MILLRACE_TWO_HOSTS:-} ]]; then
  [[ -x $program && -r $config ]] || Fail "run it in the folder of an unpacked package: no bin/millrace and $config here"
  for tool in unshare nsenter ip mpirun python3; do command -v "$tool" >/dev/null || Skip "$tool is not installed"; done
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
  ((gpus >= 2)) || Skip "two GPUs are needed, this machine has $gpus"
  out=${1:-two_hosts_gpu}
  mkdir -p "$out" || exit 1
  words=(unshare --net --mount --pid --fork --kill-child=KILL --mount-proc)
  probe=(sh -c 'ip link add probe0 type veth peer name probe1 && unshare --net --uts true')
  if ! "${words[@]}" "${probe[@]}" 2>/dev/null; then
    words=(unshare --user --map-root-user "${words[@]:1}")
    "${words[@]}" "${probe[@]}" 2>"$out/probe.log" || Skip "network namespaces are not allowed here ($(tail -n1 "$out/probe.log"))"
  fi
  MILLRACE_TWO_HOSTS=$(realpath "$out") timeout -k 5 150 "${words[@]}" "$(realpath "$0")"
  exit $?
fi

out=$MILLRACE_TWO_HOSTS
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
ip link set lo up || Fail "no loopback interface"

# Host NAME ADDRESS: a process that holds the host's namespaces; prints its pid.
Host() {
  unshare --net --uts sh -c 'hostname "$0" && ip link set lo up && exec sleep 1000' "$1" >/dev/null 2>&1 &
  echo $!
}
alpha=$(Host alpha) beta=$(Host beta)
for _ in {1..50}; do
  [[ $(nsenter --target "$alpha" --uts hostname) == alpha && $(nsenter --target "$beta" --uts hostname) == beta ]] && break
  sleep 0.1
done
ip link add end-alpha type veth peer name end-beta || Fail "no virtual cable"
Connect() {  # PID END ADDRESS
  ip link set "$2" netns "$1" &&
    nsenter --target "$1" --net sh -c "ip link set $2 name veth0 && ip address add $3/24 dev veth0 && ip link set veth0 up"
}
Connect "$alpha" end-alpha 10.91.7.1 && Connect "$beta" end-beta 10.91.7.2 || Fail "the hosts cannot be joined"

# mpirun's remote shell. Each host has one GPU: alpha the first, beta the second.
cat >"$out/agent" <<AGENT
#!/bin/sh
case \$1 in alpha) pid=$alpha ;; beta) pid=$beta ;; *) exit 255 ;; esac
shift
exec nsenter --target \$pid --net --uts -- sh -c "\$*"
AGENT
cat >"$out/rank" <<'RANK'
#!/bin/sh
case $(hostname) in alpha) export CUDA_VISIBLE_DEVICES=0 ;; beta) export CUDA_VISIBLE_DEVICES=1 ;; esac
exec "$@"
RANK
chmod +x "$out/agent" "$out/rank"
printf 'alpha slots=1\nbeta slots=1\n' >"$out/hostfile"

# The run's options: the same plan on both, and no option whose bits depend on time. The second run takes the first one's tuning.
run=(train "$config" --set train.steps=20 --set execution.peer_memory=off --set execution.deterministic=true
  --set execution.tuning_file="$out/tuning.json" --set checkpoint.resume=never --set optimizer.schedule.warmup=2)

began=$SECONDS
timeout 60 mpirun -n 2 --bind-to none "$program" "${run[@]}" --set run.dir="$out/one" >"$out/one.log" 2>&1 ||
  Fail "the run on one host ended with exit code $?; see $out/one.log"
echo "one host: $((SECONDS - began)) s"
began=$SECONDS
nsenter --target "$alpha" --net --uts -- timeout 70 mpirun -n 2 --hostfile "$out/hostfile" --bind-to none \
  --mca plm_rsh_agent "$out/agent" --mca btl tcp,self --mca btl_tcp_if_include veth0 --mca oob_tcp_if_include veth0 \
  -x PATH -x LD_LIBRARY_PATH -x NCCL_SOCKET_IFNAME=veth0 -x NCCL_IB_DISABLE=1 -x NCCL_MNNVL_ENABLE=0 -x NCCL_DEBUG=INFO -x NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH \
  "$out/rank" "$program" "${run[@]}" --set run.dir="$out/two" >"$out/two.log" 2>&1 ||
  Fail "the run on two hosts ended with exit code $?; see $out/two.log"
echo "two hosts: $((SECONDS - began)) s"

grep -q 'via NET/Socket' "$out/two.log" || Fail "NCCL's log has no channel via NET/Socket; see $out/two.log"
other=$(grep -oE 'via (P2P|SHM|NVLS|NET/IB)[^ ]*' "$out/two.log" | sort -u | tr '\n' ' ')
[[ -z $other ]] || Fail "NCCL also used: $other"
python3 - "$out/one" "$out/two" <<'CHECK' || Fail "the bits differ"
import json, sys
def read(folder):
    with open(folder + '/summary.json') as f:
        summary = json.load(f)
    with open(folder + '/metrics.jsonl') as f:
        losses = [json.loads(line)['loss_bits'] for line in f]
    return len(losses), losses, summary['param_hash'], summary['optimizer_hash']
one, two = (read(folder) for folder in sys.argv[1:])
print('steps %d and %d, last loss %s and %s, parameters %s and %s' % (one[0], two[0], one[1][-1], two[1][-1], one[2], two[2]))
sys.exit(0 if one == two and one[0] == 20 else 1)
CHECK
echo "PASS"
