// A small correct CSI driver that shares no code with Volplane: its volumes are directories.
//
// All state is on disk and every change is one rename, so it can be killed at any moment. Instances on
// several nodes share one directory.
package main

import (
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

const (
	name    = "directories.go.example.com"
	version = "1.0"
)

// driver serves all three services on one socket.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	store *store
	node  string
}

func main() {
	endpoint := flag.String("endpoint", "", "socket, with or without unix://")
	node := flag.String("nodeid", "", "id of the node")
	root := flag.String("root", "", "directory of all volumes, shared by all instances")
	flag.Parse()
	if *endpoint == "" || *node == "" || *root == "" {
		log.Fatal("--endpoint, --nodeid and --root are required")
	}
	kept, err := openStore(*root)
	if err != nil {
		log.Fatal(err)
	}
	socket := strings.TrimPrefix(*endpoint, "unix://")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		log.Fatal(err)
	}
	server, served := grpc.NewServer(), &driver{store: kept, node: *node}
	csi.RegisterIdentityServer(server, served)
	csi.RegisterControllerServer(server, served)
	csi.RegisterNodeServer(server, served)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	go func() {
		<-stop
		server.GracefulStop()
	}()
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
