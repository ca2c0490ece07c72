use super::*;
use std::fs;
use std::os::unix::fs::symlink;

const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,discard
60 27 0:45 / /mnt/nfs rw,noatime shared:9 master:2 - nfs4 srv:/export rw,vers=4.2,rsize=1048576
61 27 254:1 /data/sets /mnt/my\\040sets ro,relatime - ext4 /dev/vda1 rw,discard
62 60 0:46 / /mnt/nfs/fast rw - tmpfs tmpfs rw
63 27 254:1 /etc/hosts-3 /etc/hosts rw - ext4 /dev/vda1 rw
64 27 0:47 / /mnt/nfs/fast rw - fuse.s3fs s3fs rw
not a mount
65 27 x:1 / /broken rw - ext4 /dev/vdb rw
66 27 8:1 / /nohyphen rw ext4 /dev/sda1 rw
";

#[test]
fn lines_are_decoded_and_bad_ones_left_out() {
    let table = MountTable::decode(TABLE);
    let ids: Vec<u32> = table.mounts().iter().map(|mount| mount.mnt_id).collect();
    assert_eq!(ids, [22, 27, 60, 61, 62, 63, 64]);
    assert_eq!(
        table.by_mnt_id(60),
        Some(&MountFacts {
            mnt_id: 60,
            dev_major: 0,
            dev_minor: 45,
            root: "/".into(),
            mount_point: "/mnt/nfs".into(),
            fs_type: "nfs4".into(),
            source: "srv:/export".into(),
            options: "rw,noatime,vers=4.2,rsize=1048576".into(),
            storage: None,
        })
    );
    assert_eq!(
        table
            .by_dev(254, 1)
            .map(|mount| mount.mnt_id)
            .collect::<Vec<_>>(),
        [27, 61, 63]
    );
    assert_eq!(table.by_mnt_id(1), None);
}

#[test]
fn escapes_are_octal() {
    let cases = [
        ("plain", "plain"),
        ("a\\040b", "a b"),
        ("\\011\\012\\134", "\t\n\\"),
        ("\\303\\251", "é"),
        ("\\04", "\\04"),
        ("\\", "\\"),
        ("\\400", "\\400"),
    ];
    for (escaped, expected) in cases {
        assert_eq!(unescape(escaped), expected, "{escaped}");
    }
}

#[test]
fn a_path_in_a_file_system_becomes_the_path_that_the_process_sees() {
    let table = MountTable::decode(TABLE);
    let cases = [
        (60, "/imagenet/a.jpg", Some("/mnt/nfs/imagenet/a.jpg")),
        (60, "/", Some("/mnt/nfs")),
        (27, "/home/u/x", Some("/home/u/x")),
        (27, "/", Some("/")),
        (61, "/data/sets/coco/1.tar", Some("/mnt/my sets/coco/1.tar")),
        (61, "/data/sets", Some("/mnt/my sets")),
        (61, "/data/setsx/1", None),
        (61, "/elsewhere", None),
        (63, "/etc/hosts-3", Some("/etc/hosts")),
        (999, "/x", None),
        (60, "relative", None),
    ];
    for (mnt_id, path, expected) in cases {
        assert_eq!(
            table.resolve(mnt_id, path).as_deref(),
            expected,
            "{mnt_id} {path}"
        );
    }
}

#[test]
fn the_deepest_and_latest_mount_holds_a_path() {
    let table = MountTable::decode(TABLE);
    let cases = [
        ("/home/u", Some(27)),
        ("/mnt/nfs/a", Some(60)),
        ("/mnt/nfsx", Some(27)),
        ("/mnt/nfs/fast/a", Some(64)),
        ("/etc/hosts", Some(63)),
        ("/proc/1", Some(22)),
        ("relative", None),
    ];
    for (path, expected) in cases {
        assert_eq!(
            table.longest_prefix(path).map(|mount| mount.mnt_id),
            expected,
            "{path}"
        );
    }
    assert_eq!(MountTable::default().longest_prefix("/"), None);
}

#[test]
fn file_system_types_tell_where_the_bytes_are() {
    let cases = [
        ("nfs4", "srv:/x", Location::Network),
        ("lustre", "10.0.0.1@tcp:/fs", Location::Network),
        ("virtiofs", "share", Location::Network),
        ("fuse.s3fs", "s3fs", Location::Network),
        ("fuse.juicefs", "JuiceFS:data", Location::Network),
        ("fuse", "mountpoint-s3", Location::Network),
        ("fuse.passthrough", "x", Location::Unknown),
        ("fuse", "something", Location::Unknown),
        ("fuseblk", "/dev/sdb1", Location::Local),
        ("ext4", "/dev/vda", Location::Local),
        ("tmpfs", "tmpfs", Location::Local),
    ];
    for (fs_type, source, expected) in cases {
        assert_eq!(locate(fs_type, source), expected, "{fs_type} {source}");
    }
}

fn mount(dev: (u32, u32), fs_type: &str, source: &str) -> MountFacts {
    MountFacts {
        mnt_id: 1,
        dev_major: dev.0,
        dev_minor: dev.1,
        root: "/".into(),
        mount_point: "/x".into(),
        fs_type: fs_type.into(),
        source: source.into(),
        options: "rw".into(),
        storage: None,
    }
}

#[test]
fn a_partition_leads_to_its_disk_and_a_network_mount_to_none() {
    let sys = tempfile::tempdir().expect("a folder");
    let put = |path: &str, text: &str| {
        let path = sys.path().join(path);
        fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
        fs::write(path, text).expect("a file");
    };
    put("devices/pci/nvme0n1/nvme0n1p2/partition", "2\n");
    put("devices/pci/nvme0n1/queue/rotational", "0\n");
    put(
        "devices/pci/nvme0n1/queue/scheduler",
        "[none] mq-deadline\n",
    );
    put("devices/pci/nvme0n1/device/model", "Fast SSD 2TB   \n");
    put("class/bdi/259:2/read_ahead_kb", "128\n");
    put("class/bdi/0:45/read_ahead_kb", "15360\n");
    fs::create_dir_all(sys.path().join("dev/block")).expect("a folder");
    symlink(
        "../../devices/pci/nvme0n1/nvme0n1p2",
        sys.path().join("dev/block/259:2"),
    )
    .expect("a link");

    let local = StorageFacts {
        device: Some("nvme0n1".into()),
        rotational: Some(false),
        model: Some("Fast SSD 2TB".into()),
        scheduler: Some("none".into()),
        read_ahead_kb: Some(128),
        network: Some(false),
    };
    let remote = |read_ahead_kb, network| StorageFacts {
        device: None,
        rotational: None,
        model: None,
        scheduler: None,
        read_ahead_kb,
        network,
    };
    let cases = [
        (mount((259, 2), "ext4", "/dev/nvme0n1p2"), Some(local)),
        (
            mount((0, 45), "nfs4", "srv:/x"),
            Some(remote(Some(15360), Some(true))),
        ),
        (mount((0, 46), "fuse.mine", "x"), Some(remote(None, None))),
        (mount((0, 47), "tmpfs", "tmpfs"), None),
        (mount((0, 48), "overlay", "overlay"), None),
        (mount((8, 99), "ext4", "/dev/sdx"), None),
    ];
    for (mount, expected) in cases {
        assert_eq!(
            read_storage(sys.path(), &mount),
            expected,
            "{}",
            mount.fs_type
        );
    }
}

#[test]
fn network_disks_are_known_by_name() {
    for (name, expected) in [
        ("rbd0", true),
        ("nbd12", true),
        ("vda", false),
        ("rbdx", false),
        ("nvme0n1", false),
    ] {
        assert_eq!(is_network_disk(name), expected, "{name}");
    }
}

#[test]
fn our_own_mounts_can_be_read() {
    let mut table = MountTable::read(std::process::id()).expect("our own");
    for mount in &mut table.mounts {
        mount.read_storage();
    }
    let proc = table
        .longest_prefix("/proc/self")
        .expect("procfs is mounted");
    assert_eq!(proc.fs_type, "proc");
    let bytes = postcard::to_stdvec(&table).expect("encodes");
    assert_eq!(
        postcard::from_bytes::<MountTable>(&bytes).expect("decodes"),
        table
    );
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_table(text in "([0-9:/ -]|\\\\[0-7]{0,3}|[a-zé]|\n){0,200}", path in "[/a-zé]{0,20}") {
        let table = MountTable::decode(&text);
        for mount in table.mounts() {
            table.resolve(mount.mnt_id, &path);
        }
        table.longest_prefix(&path);
    }
}
