#!/usr/bin/env bash
# Kubernetes' API server and controllers for tests/k8s/control_plane.py, built from Debian 12's sources (1.20.2: later
# ones carry the client alone), into the folder that is given. Twelve minutes on two cores. Wants deb-src in apt's
# sources, and: apt install golang-1.19-go etcd-server rsync make
set -euo pipefail
folder=${1:?usage: control_plane.sh FOLDER}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
go=/usr/lib/go-1.19/bin
for needed in "$go/go" etcd rsync make; do
  command -v "$needed" >/dev/null || { echo "$needed is missing: apt install golang-1.19-go etcd-server rsync make" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work"
apt-get source -qq --download-only kubernetes=1.20.5+really1.20.2-1.1+deb12u1 >/dev/null
apt-get download -qq golang-github-modern-go-reflect2-dev kubernetes-client >/dev/null
tar -xzf kubernetes_*.orig.tar.gz
for package in ./*.deb; do dpkg-deb -x "$package" debian; done
cd kubernetes-*/

# As written for Go 1.15, it takes an empty string for null, and ends where it writes a map.
rm vendor/github.com/modern-go/reflect2/*.{go,s}
cp -L ../debian/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} vendor/github.com/modern-go/reflect2/
sed -i 's/data == nil || reflect.DeepEqual(.*)) {/data == nil {/' \
  "$(readlink -f vendor/k8s.io/kube-openapi/pkg/validation/validate/type.go)"

PATH=$go:$PATH make WHAT="cmd/kube-apiserver cmd/kube-controller-manager"
cp _output/local/bin/linux/*/kube-apiserver _output/local/bin/linux/*/kube-controller-manager ../debian/usr/bin/kubectl "$folder"
echo "MUXFLEET_CONTROL_PLANE=$folder make test-k8s ARGS=\"-k 'rolling_update or node_drain'\""
