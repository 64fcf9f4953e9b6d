/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/probe.h"

#include <linux/kvm.h>
#include <string.h>
#include <sys/ioctl.h>

int x86_probe_open(struct x86_probe *probe, const struct kvm_system *system, struct error **err)
{
	int code = kvm_vm_create(&probe->vm, system, NULL, err);

	if (code < 0)
		return code;
	code = kvm_vcpu_create(&probe->vcpu, &probe->vm, 0, NULL, NULL, err);
	if (code < 0)
		kvm_vm_destroy(&probe->vm);
	return code;
}

void x86_probe_close(struct x86_probe *probe)
{
	if (probe->vm.fd < 0)
		return;
	kvm_vcpu_destroy(&probe->vcpu);
	kvm_vm_destroy(&probe->vm);
}

int x86_host_probe(struct x86_host *host, const struct x86_probe *probe,
		   const struct x86_cpuid *cpuid, struct error **err)
{
	struct vcpu_layout layout = {0};
	int khz = ioctl(probe->vcpu.fd, KVM_GET_TSC_KHZ, 0);
	int code;

	*host = (struct x86_host){
		.tsc_khz = khz > 0 ? (uint32_t)khz : 0,
		.tsc_scales = kvm_vm_capability(&probe->vm, KVM_CAP_TSC_CONTROL) > 0,
	};
	code = x86_cpuid_apply(cpuid, probe->vcpu.fd, 0, 1, err);
	if (code == 0)
		code = vcpu_layout_create(&layout, &probe->vm, cpuid, probe->vcpu.fd, err);
	if (code < 0)
		return code;
	memcpy(host->msrs, layout.msrs, sizeof(host->msrs));
	host->msr_count = layout.msr_count;
	vcpu_layout_free(&layout);
	return 0;
}

bool x86_host_has_msr(const struct x86_host *host, uint32_t index)
{
	for (unsigned int i = 0; i < host->msr_count; i++)
		if (host->msrs[i] == index)
			return true;
	return false;
}

bool x86_tsc_rates_agree(uint32_t a_khz, uint32_t b_khz)
{
	uint64_t difference = a_khz > b_khz ? a_khz - b_khz : b_khz - a_khz;

	return difference * 1000000 <= (uint64_t)a_khz * 250;
}
