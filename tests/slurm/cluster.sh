#!/usr/bin/env bash
# A SLURM cluster of one node on this machine, for as long as a command runs: tests/slurm/cluster.sh COMMAND...
# Needs root and Debian's packages, which it installs when they are missing. Says why and exits 77 when it cannot.
set -euo pipefail

skip() { echo "skipped: $1" >&2; exit 77; }

[ "$(id -u)" = 0 ] || skip "only root can start the daemons of SLURM"
export PATH="$PATH:/usr/sbin:/sbin"
if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v munged >/dev/null; then
    command -v apt-get >/dev/null || skip "slurmctld, slurmd and munged are missing, and there is no apt-get"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        slurmctld slurmd slurm-client munge; } >&2 || skip "SLURM's packages could not be installed"
fi

folder=$(mktemp -d)
mkdir -p "$folder/state" "$folder/spool" /run/munge
chown munge: /run/munge
if ! [ -s /etc/munge/munge.key ]; then
    (umask 077 && dd if=/dev/urandom bs=128 count=1 of=/etc/munge/munge.key status=none)
    chown munge: /etc/munge/munge.key
fi

cat > "$folder/slurm.conf" <<CONF
ClusterName=bkrl
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until its old credential has expired: let that be seconds.
AuthInfo=cred_expire=5
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=20
# Time limits are looked at every half minute whatever is said here.
SchedulerParameters=sched_interval=2,bf_interval=2
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
NodeName=$(hostname) NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=test Nodes=$(hostname) Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF="$folder/slurm.conf"

pids=()
cleanup() {
    scancel --user=root 2>/dev/null || true
    for _ in $(seq 30); do [ -z "$(squeue --noheader 2>/dev/null)" ] && break; sleep 1; done
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT

if ! munge -n >/dev/null 2>&1; then
    (cd / && exec setpriv --reuid munge --regid munge --clear-groups munged --foreground) >"$folder/munged.log" 2>&1 &
    pids+=($!)
fi
slurmctld -D -f "$SLURM_CONF" >"$folder/slurmctld.log" 2>&1 &
pids+=($!)
slurmd -D -f "$SLURM_CONF" >"$folder/slurmd.log" 2>&1 &
pids+=($!)

for _ in $(seq 60); do
    if [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ]; then
        "$@"
        exit
    fi
    sleep 1
done
tail -n 20 "$folder"/*.log >&2
skip "SLURM did not come up within a minute"
