#!/bin/busybox sh
# The first process of a machine: runs its list of tests, and tells on the console what became of them.
export PATH=/usr/bin:/bin:/sbin:/usr/sbin HOME=/root
/bin/busybox mkdir -p /sbin /usr/bin /usr/sbin
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo '+cpu +memory +io +pids' > /sys/fs/cgroup/cgroup.subtree_control
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
ip link set lo up
hostname vm
while read -r module; do insmod "/modules/$module"; done < /modules/order
# What the host says: CI, and the longest that a binary may run, in seconds.
. /told
export TRAINPROF_VM=1 TRAINPROF_BIN=/bin/trainprof TRAINPROF_WORKLOADS=/workloads
export TRAINPROF_TEST_DIR=/tmp/tests NO_COLOR=1
mkdir -p /tmp/tests
mount -t ext4 /dev/vda /tmp/tests || echo 'no disk: the tests use memory'
# What Python imports beyond its standard library.
if mkdir /packages && mount -t ext4 -o ro,noload /dev/vdb /packages; then
    mkdir -p /usr/lib/python3/dist-packages
    mount --bind /packages/usr/lib/python3/dist-packages /usr/lib/python3/dist-packages
    for library in /packages/lib/*.so* /packages/lib/*/*.so*; do
        [ -e "${library#/packages}" ] || ln -s "$library" "${library#/packages}"
    done
fi
cd /tmp/tests || exit 1
echo
echo "VM-UP $(uname -r), $(nproc) processors"
trainprof --version
list=$(sed -n 's/.*trainprof\.list=\([0-9]*\).*/\1/p' /proc/cmdline)
while read -r name arguments; do
    echo "VM-BEGIN $name $arguments"
    # shellcheck disable=SC2086 # several arguments
    { timeout -s KILL "$limit" "/tests/$name" --test-threads=1 --show-output $arguments 2>&1 < /dev/null; echo $? > /tmp/status; } | tee /tmp/out
    result=$(sed -n 's/^test result: [A-Za-z]*\. \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' /tmp/out | tail -n 1)
    echo
    echo "VM-RESULT ${result:-0 0} $(cat /tmp/status) $name"
done < "/list-$list"
echo VM-DONE
poweroff -f
