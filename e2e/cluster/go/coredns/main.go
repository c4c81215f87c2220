// Command coredns is CoreDNS with only the plugins that the cluster's own DNS needs, so that it builds in a fraction of the time.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order is the order in which a query passes the plugins; it is that of the full build.
	dnsserver.Directives = []string{
		"reload", "ready", "health", "errors", "loadbalance", "template", "kubernetes",
	}
	coremain.Run()
}
