// Pause holds namespaces open and reaps the orphans in them: it is the first process of every pod's sandbox and of the
// sandbox that the embedded cluster itself runs in. It ignores its arguments; they only serve to find it in /proc.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGINT, syscall.SIGTERM)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		// One SIGCHLD can stand for several children.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == syscall.EINTR {
				continue
			} else if err != nil || pid <= 0 {
				break
			}
		}
	}
}
