"""Two hosts on one machine: a network namespace each, joined by a pair of virtual interfaces, with names, shared memory, and processes of their own.

A program that needs them calls enter() first. It starts itself again inside a network, mount and process namespace of its own; an ordinary user
gets these from a user namespace. Nothing outside can be reached from there or changed. When the program ends, by whatever means, the kernel kills
every process inside, and with them go the hosts, their interfaces and mounts.
"""
import os
import shutil
import signal
import stat
import subprocess
import sys

INSIDE = 'MILLRACE_TWO_HOSTS'
os.environ['PATH'] = os.environ.get('PATH', '/usr/bin:/bin') + ':/usr/sbin:/sbin'  # for ip, slurmctld and munged
ADDRESSES = {'alpha': '10.91.7.1', 'beta': '10.91.7.2'}
INTERFACE = 'veth0'

# As much of the environment as a remote shell gives: what a rank needs beyond it must come through mpirun.
# As ssh: `agent HOST COMMAND...` with next to nothing of the caller's environment. What runs there holds none of the caller's pipes, and
# outlives the agent.
AGENT = """#!%s -B
import os, subprocess, sys
enter, path = %r, %r
if sys.argv[1] not in enter:
    sys.exit('agent: no host ' + sys.argv[1])
remote = subprocess.Popen(enter[sys.argv[1]] + ['sh', '-c', ' '.join(sys.argv[2:])], env={'PATH': path, 'HOME': '/'},
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
for text in iter(lambda: os.read(remote.stdout.fileno(), 65536), b''):
    os.write(1, text)
sys.exit(255 if remote.wait() < 0 else remote.returncode)
"""
REMOTE_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'


def outer_command():
    """The words that start a program in namespaces of its own, or None where that is not allowed."""
    base = ['unshare', '--net', '--mount', '--pid', '--fork', '--kill-child=KILL', '--mount-proc']
    probe = ['sh', '-c', 'ip link add probe0 type veth peer name probe1 && mount -t tmpfs probe /mnt && unshare --net --uts --ipc --mount --pid --fork true']
    for words in (base, base[:1] + ['--user', '--map-root-user'] + base[1:]):
        if subprocess.run(words + probe, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return words
    return None


def why_not():
    """What is missing for two hosts; '' when nothing is."""
    if os.path.realpath(__file__).startswith('/tmp/'):
        return 'this checkout lies below /tmp, of which each host has one of its own'
    for tool in ('unshare', 'nsenter', 'ip'):
        if shutil.which(tool) is None:
            return '%s is not installed (packages util-linux and iproute2)' % tool
    return '' if outer_command() else 'this machine does not allow network namespaces (unshare --net, ip link add type veth)'


def enter():
    """Returns inside; exits with an error where that cannot be: who starts a test of two hosts without asking why_not() gets no pass."""
    if os.environ.get(INSIDE):
        os.environ.pop(INSIDE)
        subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True)  # what runs beside the hosts is on one of its own
        # Open MPI names its files by pid, and other pids of this machine may be the same.
        subprocess.run(['mount', '-t', 'tmpfs', 'shm', '/dev/shm'], check=True)
        os.environ['OMPI_MCA_orte_tmpdir_base'] = '/dev/shm'
        return
    reason = why_not()
    if reason:
        sys.exit('two hosts: ' + reason)
    os.execvpe('unshare', outer_command() + [sys.executable, '-B'] + sys.argv, dict(os.environ, **{INSIDE: '1'}))


def pids_in(network):
    """Processes of a network namespace, as /proc/PID/ns/net names it."""
    found = []
    for name in os.listdir('/proc'):
        try:
            if name.isdigit() and os.readlink('/proc/%s/ns/net' % name) == network:
                found.append(int(name))
        except OSError:
            continue  # it has ended
    return found


def started(words, what):
    """A process that has said "ready"."""
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if process.stdout.readline() != b'ready\n':
        raise RuntimeError('%s does not start: %s' % (what, process.communicate()[1].decode()))
    process.stdout.close()
    process.stderr.close()
    return process


class Host:
    """A name, an address, /dev/shm and /tmp, but `folder` as outside; with `own_pids` also a process namespace: all of it can be killed at once.

    The process `network` holds its network namespace: a host that is off has its end of the cable all the same.
    """

    def __init__(self, name, own_pids, folder, network):
        self.name, self.address, self.own_pids, self.network = name, ADDRESSES[name], own_pids, network
        self.command_in_network('ip', 'link', 'set', INTERFACE, 'up')
        words = ['unshare', '--uts', '--ipc', '--mount'] + (['--pid', '--fork', '--kill-child=KILL'] if own_pids else [])
        script = 'hostname "$0" && mount -t tmpfs shm /dev/shm && mount --bind "$1" /mnt && mount -t tmpfs tmp /tmp && ' \
            'mkdir -p "$1" && mount --bind /mnt "$1" && umount /mnt && mount --bind "$1/hosts" /etc/hosts && echo ready && ' \
            'exec env --ignore-signal=CHLD sleep infinity'  # as the host's first process it inherits orphans; the kernel buries them
        if own_pids:
            script = 'mount -t proc proc /proc && ' + script
        self.process = started(self.in_network() + words + ['sh', '-c', script, name, folder], 'host ' + name)
        self.pid = self.process.pid
        if own_pids:
            with open('/proc/%d/task/%d/children' % (self.pid, self.pid)) as f:
                self.pid = int(f.read())

    def in_network(self):
        return ['nsenter', '--target', str(self.network.pid), '--net', '--']

    def command_in_network(self, *args):
        subprocess.run(self.in_network() + list(args), stdin=subprocess.DEVNULL, check=True, timeout=30)

    def entering(self):
        namespaces = ['--net', '--uts', '--ipc', '--mount'] + (['--pid'] if self.own_pids else [])
        return ['nsenter', '--target', str(self.pid)] + namespaces + ['--']

    def inside(self, *args):
        """The words that run a command there, in this working directory."""
        return self.entering() + ['sh', '-c', 'cd "$0" && exec "$@"', os.getcwd(), *map(str, args)]

    def kill(self):
        """Every process at once. Their connections end as the kernel closes them."""
        if self.own_pids:
            os.kill(self.pid, signal.SIGKILL)
        else:
            for pid in pids_in(os.readlink('/proc/%d/ns/net' % self.pid)):
                if pid != self.network.pid:
                    os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def cut_off(self):
        """Nothing passes the cable any more, and nobody is told."""
        self.command_in_network('ip', 'link', 'set', INTERFACE, 'down')

    def sent_bytes(self):
        with open('/proc/%d/net/dev' % self.network.pid) as f:
            for line in f:
                name, _, figures = line.partition(':')
                if name.strip() == INTERFACE:
                    return int(figures.split()[8])
        raise RuntimeError('%s has no interface %s' % (self.name, INTERFACE))


class TwoHosts:
    """alpha, from which jobs are started, and beta, which can be killed. `folder` is where files about them go; each host sees all of it.

    own_pids: alpha, too, has a process namespace; then nobody on it can start anything on beta but through the network.
    """

    def __init__(self, folder, own_pids=False):
        self.folder, self.own_pids = folder, own_pids
        self.write('hosts', '127.0.0.1 localhost\n' + ''.join('%s %s\n' % (a, n) for n, a in ADDRESSES.items()))
        self.networks = {name: started(['unshare', '--net', 'sh', '-c', 'ip link set lo up && echo ready && exec sleep infinity'], 'a network')
                         for name in ADDRESSES}
        ends = ['end-alpha', 'end-beta']
        subprocess.run(['ip', 'link', 'add', ends[0], 'type', 'veth', 'peer', 'name', ends[1]], check=True)
        for (name, network), end in zip(self.networks.items(), ends):
            subprocess.run(['ip', 'link', 'set', end, 'netns', str(network.pid)], check=True)
            subprocess.run(['nsenter', '--target', str(network.pid), '--net', '--', 'sh', '-c', 'ip link set %s name %s && ip address add %s/24 dev %s' % (
                end, INTERFACE, ADDRESSES[name], INTERFACE)], check=True)
        self.start()

    def start(self):
        self.alpha = Host('alpha', self.own_pids, self.folder, self.networks['alpha'])
        self.start_beta()

    def start_beta(self):
        """Also after it was killed or cut off: the same name and address again."""
        self.beta = Host('beta', True, self.folder, self.networks['beta'])
        self.agent = self.write('agent', AGENT % (sys.executable, {h.name: h.entering() for h in (self.alpha, self.beta)}, REMOTE_PATH), executable=True)

    def write(self, name, text, executable=False):
        path = os.path.join(self.folder, name)
        with open(path, 'w') as f:
            f.write(text)
        if executable:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def hostfile(self, slots):
        return self.write('hostfile', ''.join('%s slots=%d\n' % (name, slots) for name in ADDRESSES))

    def environment(self):
        """For mpirun on alpha: it reaches beta by the agent, and ranks reach each other by TCP over the cable alone."""
        return {'OMPI_MCA_plm_rsh_agent': self.agent, 'OMPI_MCA_btl': 'tcp,self', 'OMPI_MCA_pml': 'ob1',
                'OMPI_MCA_btl_tcp_if_include': INTERFACE, 'OMPI_MCA_oob_tcp_if_include': INTERFACE}

    def end(self):
        for host in (self.alpha, self.beta):
            if host.process.poll() is None:
                host.kill()
        for network in self.networks.values():
            network.kill()
            network.wait()


if __name__ == '__main__':  # for tools/test: says why there cannot be two hosts, and fails, or says nothing
    sys.exit(why_not() or None)
