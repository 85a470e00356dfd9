package main

import (
	"context"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	defaultSize = int64(1) << 30
	largestSize = int64(1) << 50
)

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: name, VendorVersion: version}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	growth := &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: service}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: growth}},
	}}, nil
}

func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	reply := &csi.ControllerGetCapabilitiesResponse{}
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csi.ControllerServiceCapability_RPC_GET_VOLUME,
		csi.ControllerServiceCapability_RPC_GET_CAPACITY,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		rpc := &csi.ControllerServiceCapability_RPC{Type: kind}
		one := &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}
		reply.Capabilities = append(reply.Capabilities, one)
	}
	return reply, nil
}

// unsupported tells what a directory cannot do; "" if it can do everything.
func unsupported(capabilities []*csi.VolumeCapability) string {
	for _, one := range capabilities {
		switch {
		case one.GetBlock() != nil:
			return "a directory is not a block device"
		case one.GetMount() == nil:
			return "a capability has no access type"
		case one.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN:
			return "a capability has no access mode"
		case len(one.GetMount().GetMountFlags()) > 0:
			return "a directory has no mount flags"
		}
	}
	return ""
}

func invalid(why string) error { return status.Error(codes.InvalidArgument, why) }

func internal(err error) error { return status.Error(codes.Internal, err.Error()) }

func chooseSize(wanted *csi.CapacityRange) (int64, error) {
	low, high := wanted.GetRequiredBytes(), wanted.GetLimitBytes()
	if low < 0 || high < 0 || (high > 0 && low > high) {
		return 0, invalid("capacity_range is not possible")
	}
	if low > largestSize {
		return 0, status.Errorf(codes.OutOfRange, "%d bytes are more than %d", low, largestSize)
	}
	if low > 0 {
		return low, nil
	}
	if high > 0 && high < defaultSize {
		return high, nil
	}
	return defaultSize, nil
}

func (d *driver) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if request.GetName() == "" || len(request.GetVolumeCapabilities()) == 0 {
		return nil, invalid("name and volume_capabilities are required")
	}
	if why := unsupported(request.GetVolumeCapabilities()); why != "" {
		return nil, invalid(why)
	}
	size, err := chooseSize(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	source := request.GetVolumeContentSource().GetSnapshot().GetSnapshotId() +
		request.GetVolumeContentSource().GetVolume().GetVolumeId()
	id := newID("vol", request.GetName())
	defer d.store.lock(id)()
	found, err := d.store.find(id)
	if err != nil {
		return nil, internal(err)
	}
	if found == nil {
		if found, err = d.makeVolume(id, request, size, source); err != nil {
			return nil, err
		}
	}
	low, high := request.GetCapacityRange().GetRequiredBytes(), request.GetCapacityRange().GetLimitBytes()
	if found.Source != source || found.Size < low || (high > 0 && found.Size > high) {
		return nil, status.Errorf(codes.AlreadyExists, "%s has %d bytes of %q", id, found.Size, found.Source)
	}
	volume := toVolume(found)
	volume.ContentSource = request.GetVolumeContentSource()
	return &csi.CreateVolumeResponse{Volume: volume}, nil
}

func (d *driver) makeVolume(id string, request *csi.CreateVolumeRequest, size int64, source string) (*record, error) {
	if request.GetVolumeContentSource() != nil {
		origin, err := d.store.find(source)
		if err != nil {
			return nil, internal(err)
		}
		if origin == nil {
			return nil, status.Errorf(codes.NotFound, "there is no %q", source)
		}
		if size < origin.Size {
			return nil, status.Errorf(codes.OutOfRange, "%s has %d bytes", source, origin.Size)
		}
	}
	made := &record{ID: id, Name: request.GetName(), Size: size, Source: source, Made: time.Now().Unix()}
	if err := d.store.create(made, source); err != nil {
		return nil, internal(err)
	}
	return made, nil
}

func toVolume(found *record) *csi.Volume {
	return &csi.Volume{VolumeId: found.ID, CapacityBytes: found.Size}
}

func (d *driver) DeleteVolume(_ context.Context, request *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if request.GetVolumeId() == "" {
		return nil, invalid("volume_id is required")
	}
	defer d.store.lock(request.GetVolumeId())()
	if err := d.store.remove(request.GetVolumeId()); err != nil {
		return nil, internal(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// require returns the record, or NOT_FOUND.
func (d *driver) require(id string) (*record, error) {
	if id == "" {
		return nil, invalid("the id is required")
	}
	found, err := d.store.find(id)
	if err != nil {
		return nil, internal(err)
	}
	if found == nil {
		return nil, status.Errorf(codes.NotFound, "there is no %q", id)
	}
	return found, nil
}

func (d *driver) ValidateVolumeCapabilities(_ context.Context, request *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if request.GetVolumeId() == "" || len(request.GetVolumeCapabilities()) == 0 {
		return nil, invalid("volume_id and volume_capabilities are required")
	}
	if _, err := d.require(request.GetVolumeId()); err != nil {
		return nil, err
	}
	if why := unsupported(request.GetVolumeCapabilities()); why != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext:      request.GetVolumeContext(),
			VolumeCapabilities: request.GetVolumeCapabilities(),
			Parameters:         request.GetParameters(),
		},
	}, nil
}

// page cuts a list; a token is the id of the last entry of a page.
func (d *driver) page(kind, token string, most int32) ([]*record, string, error) {
	if token != "" && !(validID.MatchString(token) && strings.HasPrefix(token, kind)) {
		return nil, "", status.Errorf(codes.Aborted, "%q is not a token", token)
	}
	found, err := d.store.list(kind, token)
	if err != nil {
		return nil, "", internal(err)
	}
	if most <= 0 || len(found) <= int(most) {
		return found, "", nil
	}
	return found[:most], found[most-1].ID, nil
}

func (d *driver) ListVolumes(_ context.Context, request *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	found, next, err := d.page("vol", request.GetStartingToken(), request.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	reply := &csi.ListVolumesResponse{NextToken: next}
	for _, one := range found {
		reply.Entries = append(reply.Entries, &csi.ListVolumesResponse_Entry{Volume: toVolume(one)})
	}
	return reply, nil
}

func (d *driver) ControllerGetVolume(_ context.Context, request *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	found, err := d.require(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: toVolume(found), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{},
	}, nil
}

func (d *driver) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	var found unix.Statfs_t
	if err := unix.Statfs(d.store.root, &found); err != nil {
		return nil, internal(err)
	}
	return &csi.GetCapacityResponse{AvailableCapacity: int64(found.Bavail) * found.Bsize}, nil
}

func (d *driver) ControllerExpandVolume(_ context.Context, request *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if request.GetVolumeId() == "" || request.GetCapacityRange() == nil {
		return nil, invalid("volume_id and capacity_range are required")
	}
	size, err := chooseSize(request.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	defer d.store.lock(request.GetVolumeId())()
	found, err := d.require(request.GetVolumeId())
	if err != nil {
		return nil, err
	}
	if size > found.Size {
		found.Size = size
		if err := d.store.save(found); err != nil {
			return nil, internal(err)
		}
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: found.Size}, nil
}

func toSnapshot(found *record) *csi.Snapshot {
	return &csi.Snapshot{
		SnapshotId:     found.ID,
		SourceVolumeId: found.Source,
		SizeBytes:      found.Size,
		CreationTime:   &timestamppb.Timestamp{Seconds: found.Made},
		ReadyToUse:     true,
	}
}

func (d *driver) CreateSnapshot(_ context.Context, request *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if request.GetName() == "" || request.GetSourceVolumeId() == "" {
		return nil, invalid("name and source_volume_id are required")
	}
	id := newID("snap", request.GetName())
	defer d.store.lock(id)()
	found, err := d.store.find(id)
	if err != nil {
		return nil, internal(err)
	}
	if found == nil {
		volume, err := d.require(request.GetSourceVolumeId())
		if err != nil {
			return nil, err
		}
		found = &record{ID: id, Name: request.GetName(), Size: volume.Size, Source: volume.ID, Made: time.Now().Unix()}
		if err := d.store.create(found, volume.ID); err != nil {
			return nil, internal(err)
		}
	}
	if found.Source != request.GetSourceVolumeId() {
		return nil, status.Errorf(codes.AlreadyExists, "%s is a snapshot of %s", request.GetName(), found.Source)
	}
	return &csi.CreateSnapshotResponse{Snapshot: toSnapshot(found)}, nil
}

func (d *driver) DeleteSnapshot(_ context.Context, request *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if request.GetSnapshotId() == "" {
		return nil, invalid("snapshot_id is required")
	}
	defer d.store.lock(request.GetSnapshotId())()
	if err := d.store.remove(request.GetSnapshotId()); err != nil {
		return nil, internal(err)
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

func (d *driver) ListSnapshots(_ context.Context, request *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	most := request.GetMaxEntries()
	filtered := request.GetSnapshotId() != "" || request.GetSourceVolumeId() != ""
	if filtered {
		most = 0
	}
	found, next, err := d.page("snap", request.GetStartingToken(), most)
	if err != nil {
		return nil, err
	}
	reply := &csi.ListSnapshotsResponse{NextToken: next}
	for _, one := range found {
		if (request.GetSnapshotId() == "" || request.GetSnapshotId() == one.ID) &&
			(request.GetSourceVolumeId() == "" || request.GetSourceVolumeId() == one.Source) {
			reply.Entries = append(reply.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: toSnapshot(one)})
		}
	}
	return reply, nil
}
