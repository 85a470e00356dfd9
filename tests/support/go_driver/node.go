package main

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	rpc := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_VOLUME_STATS}
	one := &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{one}}, nil
}

// isMount tells whether something is mounted at the path itself.
func isMount(path string) (bool, error) {
	var found unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT
	err := unix.Statx(unix.AT_FDCWD, path, flags, 0, &found)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return found.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

// bind mounts the source in one step, read-only or not.
func bind(source, target string, readonly bool) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if readonly {
		change := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, change); err != nil {
			return err
		}
	}
	return unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func (d *driver) NodePublishVolume(_ context.Context, request *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if request.GetVolumeId() == "" || request.GetTargetPath() == "" || request.GetVolumeCapability() == nil {
		return nil, invalid("volume_id, target_path and volume_capability are required")
	}
	if why := unsupported([]*csi.VolumeCapability{request.GetVolumeCapability()}); why != "" {
		return nil, invalid(why)
	}
	found, err := d.require(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer d.store.lock(request.GetTargetPath())()
	source, target := d.store.directory(found.ID), request.GetTargetPath()
	mounted, err := isMount(target)
	if err != nil {
		return nil, internal(err)
	}
	if mounted {
		return d.comparePublished(source, target, request.GetReadonly())
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, internal(err)
	}
	if err := bind(source, target, request.GetReadonly()); err != nil {
		return nil, internal(err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) comparePublished(source, target string, readonly bool) (*csi.NodePublishVolumeResponse, error) {
	here, err := os.Stat(target)
	if err != nil {
		return nil, internal(err)
	}
	wanted, err := os.Stat(source)
	if err != nil {
		return nil, internal(err)
	}
	var flags unix.Statfs_t
	if err := unix.Statfs(target, &flags); err != nil {
		return nil, internal(err)
	}
	if !os.SameFile(here, wanted) || (flags.Flags&unix.ST_RDONLY != 0) != readonly {
		return nil, status.Errorf(codes.AlreadyExists, "%s is published in another way", target)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (d *driver) NodeUnpublishVolume(_ context.Context, request *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if request.GetVolumeId() == "" || request.GetTargetPath() == "" {
		return nil, invalid("volume_id and target_path are required")
	}
	target := request.GetTargetPath()
	defer d.store.lock(target)()
	for {
		mounted, err := isMount(target)
		if err != nil {
			return nil, internal(err)
		}
		if !mounted {
			break
		}
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
			return nil, internal(err)
		}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *driver) NodeGetVolumeStats(_ context.Context, request *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	path := request.GetVolumePath()
	if request.GetVolumeId() == "" || path == "" {
		return nil, invalid("volume_id and volume_path are required")
	}
	if _, err := d.require(request.GetVolumeId()); err != nil {
		return nil, err
	}
	gone := status.Errorf(codes.NotFound, "nothing is published at %s", path)
	if mounted, err := isMount(path); err != nil || !mounted {
		return nil, gone
	}
	var found unix.Statfs_t
	if err := unix.Statfs(path, &found); err != nil {
		return nil, internal(err)
	}
	if mounted, err := isMount(path); err != nil || !mounted { // unpublished meanwhile
		return nil, gone
	}
	size := int64(found.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit: csi.VolumeUsage_BYTES, Total: int64(found.Blocks) * size,
			Available: int64(found.Bavail) * size, Used: int64(found.Blocks-found.Bfree) * size,
		},
		{
			Unit: csi.VolumeUsage_INODES, Total: int64(found.Files),
			Available: int64(found.Ffree), Used: int64(found.Files - found.Ffree),
		},
	}}, nil
}
