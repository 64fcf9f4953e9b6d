/* SPDX-License-Identifier: Apache-2.0 */
#include "arch/x86/cpuid.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include "arch/x86/cpu_features.h"
#include "base/cleanup.h"

enum { EAX, EBX, ECX, EDX };

static const char *const register_names[] = {"eax", "ebx", "ecx", "edx"};

#define BIT(n) (UINT32_C(1) << (n))

#define FEATURE1_ECX_MONITOR      BIT(3)
#define FEATURE1_ECX_VMX          BIT(5)
#define FEATURE1_ECX_PDCM         BIT(15)
#define FEATURE1_ECX_TSC_DEADLINE BIT(24)
#define FEATURE1_ECX_XSAVE        BIT(26)
#define FEATURE1_ECX_OSXSAVE      BIT(27)
#define FEATURE1_ECX_HYPERVISOR   BIT(31)
#define FEATURE1_EDX_HTT          BIT(28)
#define FEATURE7_EBX_SGX          BIT(2)
#define FEATURE7_EBX_PT           BIT(25)
#define FEATURE7_ECX_SGX_LC       BIT(30)
#define FEATURE7_EDX_ARCH_LBR     BIT(19)
#define FEATURE8_ECX_SVM          BIT(2)

/* The topology of a vCPU goes here, and nothing of the host's. */
#define LEAF_TOPOLOGY 0xbu

/* Timing information as several hypervisors give it; KVM's APIC timer runs at 1 GHz. */
#define LEAF_TIMING  0x40000010u
#define APIC_BUS_KHZ 1000000u

static struct x86_cpuid_leaf *find(struct x86_cpuid *cpuid, uint32_t function, uint32_t index)
{
	for (unsigned int i = 0; i < cpuid->count; i++)
		if (cpuid->leaves[i].function == function && cpuid->leaves[i].index == index)
			return &cpuid->leaves[i];
	return NULL;
}

static struct x86_cpuid_leaf *find_or_add(struct x86_cpuid *cpuid, uint32_t function,
					  uint32_t index)
{
	struct x86_cpuid_leaf *leaf = find(cpuid, function, index);

	if (leaf || cpuid->count == X86_CPUID_MAX)
		return leaf;
	leaf = &cpuid->leaves[cpuid->count++];
	*leaf = (struct x86_cpuid_leaf){.function = function, .index = index};
	return leaf;
}

uint32_t x86_cpuid_get(const struct x86_cpuid *cpuid, uint32_t function, uint32_t index,
		       unsigned int reg)
{
	const struct x86_cpuid_leaf *leaf = find((struct x86_cpuid *)cpuid, function, index);

	return leaf ? leaf->reg[reg] : 0;
}

uint64_t x86_cpuid_xcr0(const struct x86_cpuid *cpuid)
{
	if (!(x86_cpuid_get(cpuid, 1, 0, ECX) & FEATURE1_ECX_XSAVE))
		return 0;
	return x86_cpuid_get(cpuid, 0xd, 0, EAX) | (uint64_t)x86_cpuid_get(cpuid, 0xd, 0, EDX)
							   << 32;
}

static void mask(struct x86_cpuid *cpuid, uint32_t function, uint32_t index, unsigned int reg,
		 uint32_t keep)
{
	struct x86_cpuid_leaf *leaf = find(cpuid, function, index);

	if (leaf)
		leaf->reg[reg] &= keep;
}

/* Drops a function with all its sub-leaves. */
static void drop(struct x86_cpuid *cpuid, uint32_t function)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < cpuid->count; i++)
		if (cpuid->leaves[i].function != function)
			cpuid->leaves[kept++] = cpuid->leaves[i];
	cpuid->count = kept;
}

static int read_supported(struct x86_cpuid *cpuid, const struct kvm_system *system,
			  struct error **err)
{
	cleanup_free struct kvm_cpuid2 *table = NULL;

	table = calloc(1, sizeof(*table) + 256 * sizeof(table->entries[0]));
	if (!table)
		return error_set(err, -ENOMEM, "no memory for the CPUID table");
	table->nent = 256;
	if (ioctl(system->fd, KVM_GET_SUPPORTED_CPUID, table) != 0)
		return error_set_errno(err, -errno, "KVM_GET_SUPPORTED_CPUID fails");

	cpuid->count = 0;
	for (uint32_t i = 0; i < table->nent; i++) {
		const struct kvm_cpuid_entry2 *entry = &table->entries[i];
		struct x86_cpuid_leaf leaf = {
			.function = entry->function,
			.index = entry->index,
			.reg = {entry->eax, entry->ebx, entry->ecx, entry->edx},
		};

		if (!(leaf.reg[0] | leaf.reg[1] | leaf.reg[2] | leaf.reg[3]))
			continue;
		if (cpuid->count == X86_CPUID_MAX)
			return error_set(err, -E2BIG,
					 "KVM lists more than %u CPUID leaves that are not empty",
					 X86_CPUID_MAX);
		cpuid->leaves[cpuid->count++] = leaf;
	}
	return 0;
}

/* What cannot move, or what this monitor does not carry, is not shown to the guest. */
static void keep_movable(struct x86_cpuid *cpuid, const struct kvm_system *system)
{
	static const uint32_t dropped[] = {
		0xa,              /* performance counters */
		0xb,        0x1f, /* topology: per vCPU */
		0xf,        0x10, /* cache allocation */
		0x12,             /* SGX */
		0x14,             /* processor trace */
		0x1c,             /* last branch records */
		0x8000000a,       /* SVM */
		0x8000001d, 0x8000001e, 0x80000026,
	};
	struct x86_cpuid_leaf *leaf;

	for (size_t i = 0; i < sizeof(dropped) / sizeof(dropped[0]); i++)
		drop(cpuid, dropped[i]);
	leaf = find(cpuid, 1, 0);
	if (leaf) {
		leaf->reg[EBX] &= 0x0000ffff; /* APIC id and count: per vCPU */
		leaf->reg[ECX] &= ~(FEATURE1_ECX_MONITOR | FEATURE1_ECX_VMX | FEATURE1_ECX_PDCM |
				    FEATURE1_ECX_OSXSAVE);
		leaf->reg[ECX] |= FEATURE1_ECX_HYPERVISOR;
		if (ioctl(system->fd, KVM_CHECK_EXTENSION, KVM_CAP_TSC_DEADLINE_TIMER) > 0)
			leaf->reg[ECX] |= FEATURE1_ECX_TSC_DEADLINE;
		leaf->reg[EDX] &= ~FEATURE1_EDX_HTT;
	}
	mask(cpuid, 7, 0, EBX, ~(FEATURE7_EBX_SGX | FEATURE7_EBX_PT));
	mask(cpuid, 7, 0, ECX, ~FEATURE7_ECX_SGX_LC);
	mask(cpuid, 7, 0, EDX, ~FEATURE7_EDX_ARCH_LBR);
	mask(cpuid, 0x80000001, 0, ECX, ~FEATURE8_ECX_SVM);
	mask(cpuid, 0x80000008, 0, ECX, 0);
	/* EBX of 0xd.0 and 0xd.1 follows XCR0 as it is now: KVM computes it. */
	mask(cpuid, 0xd, 0, EBX, 0);
	mask(cpuid, 0xd, 1, EBX, 0);
}

static void set_leaf(struct x86_cpuid *cpuid, uint32_t function, uint32_t eax, uint32_t ebx,
		     uint32_t ecx, uint32_t edx)
{
	struct x86_cpuid_leaf *leaf = find_or_add(cpuid, function, 0);

	if (leaf)
		*leaf = (struct x86_cpuid_leaf){function, 0, {eax, ebx, ecx, edx}};
}

/* The same on every host, but for features the host lacks. */
static void reduce_to_baseline(struct x86_cpuid *cpuid)
{
	const struct x86_cpuid host = *cpuid;
	uint32_t physical = x86_cpuid_get(&host, 0x80000008, 0, EAX) & 0xff;

	if (physical == 0 || physical > 40)
		physical = 40;
	cpuid->count = 0;
	set_leaf(cpuid, 0, 0xd, 0x756e6547, 0x6c65746e, 0x49656e69); /* GenuineIntel */
	set_leaf(cpuid, 1, X86_BASELINE_SIGNATURE, 0x00000800,
		 x86_cpuid_get(&host, 1, 0, ECX) & X86_BASELINE_1_ECX,
		 x86_cpuid_get(&host, 1, 0, EDX) & X86_BASELINE_1_EDX);
	set_leaf(cpuid, 6, x86_cpuid_get(&host, 6, 0, EAX) & BIT(2), 0, 0, 0); /* ARAT */
	set_leaf(cpuid, 0x40000000, x86_cpuid_get(&host, 0x40000000, 0, EAX),
		 x86_cpuid_get(&host, 0x40000000, 0, EBX), x86_cpuid_get(&host, 0x40000000, 0, ECX),
		 x86_cpuid_get(&host, 0x40000000, 0, EDX));
	set_leaf(cpuid, 0x40000001, x86_cpuid_get(&host, 0x40000001, 0, EAX) & X86_BASELINE_KVM_EAX,
		 0, 0, 0);
	set_leaf(cpuid, 0x80000000, 0x80000008, 0, 0, 0);
	set_leaf(cpuid, 0x80000001, 0, 0,
		 x86_cpuid_get(&host, 0x80000001, 0, ECX) & X86_BASELINE_80000001_ECX,
		 x86_cpuid_get(&host, 0x80000001, 0, EDX) & X86_BASELINE_80000001_EDX);
	set_leaf(cpuid, 0x80000008, 48 << 8 | physical, 0, 0, 0);
}

void x86_cpuid_set_tsc_khz(struct x86_cpuid *cpuid, uint32_t khz)
{
	struct x86_cpuid_leaf *hypervisor = find(cpuid, 0x40000000, 0);

	if (khz == 0 || !hypervisor)
		return;
	if (hypervisor->reg[EAX] < LEAF_TIMING)
		hypervisor->reg[EAX] = LEAF_TIMING;
	set_leaf(cpuid, LEAF_TIMING, khz, APIC_BUS_KHZ, 0, 0);
}

int x86_cpuid_init(struct x86_cpuid *cpuid, const struct kvm_system *system, const char *model,
		   struct error **err)
{
	bool baseline = strcmp(model, "baseline") == 0;
	int code;

	if (!baseline && strcmp(model, "host") != 0)
		return error_set(err, -EINVAL, "unknown CPU model \"%s\": host or baseline", model);
	code = read_supported(cpuid, system, err);
	if (code < 0)
		return code;
	keep_movable(cpuid, system);
	if (baseline)
		reduce_to_baseline(cpuid);
	return 0;
}

/* Functions whose answer depends on ECX. */
static bool has_index(uint32_t function)
{
	switch (function) {
	case 4:
	case 7:
	case 0xb:
	case 0xd:
	case 0xf:
	case 0x10:
	case 0x12:
	case 0x14:
	case 0x17:
	case 0x18:
	case 0x1d:
	case 0x1e:
	case 0x1f:
	case 0x20:
	case 0x24:
	case 0x8000001d:
	case 0x80000026:
		return true;
	default:
		return false;
	}
}

static unsigned int bits_for(unsigned int cpus)
{
	unsigned int bits = 0;

	while ((1u << bits) < cpus)
		bits++;
	return bits;
}

static void put_entry(struct kvm_cpuid2 *table, const struct x86_cpuid_leaf *leaf)
{
	table->entries[table->nent++] = (struct kvm_cpuid_entry2){
		.function = leaf->function,
		.index = leaf->index,
		.flags = has_index(leaf->function) ? KVM_CPUID_FLAG_SIGNIFCANT_INDEX : 0,
		.eax = leaf->reg[EAX],
		.ebx = leaf->reg[EBX],
		.ecx = leaf->reg[ECX],
		.edx = leaf->reg[EDX],
	};
}

static struct x86_cpuid_leaf personal(struct x86_cpuid_leaf leaf, unsigned int index,
				      unsigned int cpus)
{
	unsigned int padded = 1u << bits_for(cpus);

	switch (leaf.function) {
	case 1:
		leaf.reg[EBX] |= index << 24 | (padded & 0xff) << 16;
		if (cpus > 1)
			leaf.reg[EDX] |= FEATURE1_EDX_HTT;
		break;
	case 4: /* cores in the package; the last level is shared by all, the others by one */
		if ((leaf.reg[EAX] & 0x1f) == 0)
			break;
		leaf.reg[EAX] &= 0x00003fff;
		leaf.reg[EAX] |= (padded - 1) << 26;
		if ((leaf.reg[EAX] >> 5 & 7) >= 3)
			leaf.reg[EAX] |= (padded - 1) << 14;
		break;
	case 0x80000008:
		leaf.reg[ECX] = bits_for(cpus) << 12 | (cpus - 1);
		break;
	default:
		break;
	}
	return leaf;
}

/* Leaf 0xb: threads of a core (one), cores of the package, end. */
static void put_topology(struct kvm_cpuid2 *table, unsigned int index, unsigned int cpus)
{
	const struct x86_cpuid_leaf levels[] = {
		{LEAF_TOPOLOGY, 0, {0, 1, 1u << 8 | 0, index}},
		{LEAF_TOPOLOGY, 1, {bits_for(cpus), cpus, 2u << 8 | 1, index}},
		{LEAF_TOPOLOGY, 2, {0, 0, 2, index}},
	};

	for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++)
		put_entry(table, &levels[i]);
}

int x86_cpuid_apply(const struct x86_cpuid *cpuid, int vcpu_fd, unsigned int index,
		    unsigned int cpus, struct error **err)
{
	cleanup_free struct kvm_cpuid2 *table = NULL;

	table = calloc(1, sizeof(*table) + (X86_CPUID_MAX + 4) * sizeof(table->entries[0]));
	if (!table)
		return error_set(err, -ENOMEM, "no memory for the CPUID table");
	for (unsigned int i = 0; i < cpuid->count; i++) {
		struct x86_cpuid_leaf leaf = personal(cpuid->leaves[i], index, cpus);

		put_entry(table, &leaf);
	}
	if (x86_cpuid_get(cpuid, 0, 0, EAX) >= LEAF_TOPOLOGY)
		put_topology(table, index, cpus);
	if (ioctl(vcpu_fd, KVM_SET_CPUID2, table) != 0)
		return error_set_errno(err, -errno, "KVM refuses the CPUID table of vCPU %u",
				       index);
	return 0;
}

int x86_cpuid_describe(const struct x86_cpuid *cpuid, struct description *d)
{
	char key[DESCRIPTION_MAX_KEY + 1];

	for (unsigned int i = 0; i < cpuid->count; i++) {
		const struct x86_cpuid_leaf *leaf = &cpuid->leaves[i];

		for (unsigned int reg = EAX; reg <= EDX; reg++) {
			int code;

			if (leaf->reg[reg] == 0)
				continue;
			snprintf(key, sizeof(key), "cpuid.0x%" PRIx32 ".%" PRIu32 ".%s",
				 leaf->function, leaf->index, register_names[reg]);
			code = description_add(d, true, key, "0x%08" PRIx32, leaf->reg[reg]);
			if (code < 0)
				return code;
		}
	}
	return 0;
}

static int parse_entry(struct x86_cpuid *cpuid, const struct description *d,
		       const struct description_entry *entry, struct error **err)
{
	struct x86_cpuid_leaf *leaf;
	uint32_t function, index;
	char name[4], end;
	uint64_t value;
	unsigned int reg;

	if (sscanf(entry->key, "cpuid.0x%8" SCNx32 ".%8" SCNu32 ".%3[a-z]%c", &function, &index,
		   name, &end) != 3)
		return error_set(err, -EPROTO, "%s: no CPUID register has such a name", entry->key);
	for (reg = EAX; reg <= EDX && strcmp(name, register_names[reg]) != 0;)
		reg++;
	if (reg > EDX)
		return error_set(err, -EPROTO, "%s: no CPUID register has such a name", entry->key);
	if (description_get_number(d, entry->key, &value) < 0 || value > UINT32_MAX)
		return error_set(err, -EPROTO, "%s: \"%s\" is no 32-bit number", entry->key,
				 entry->value);
	leaf = find_or_add(cpuid, function, index);
	if (!leaf)
		return error_set(err, -EPROTO, "%s: more than %u CPUID leaves", entry->key,
				 X86_CPUID_MAX);
	leaf->reg[reg] = (uint32_t)value;
	return 0;
}

int x86_cpuid_adopt(struct x86_cpuid *cpuid, const struct x86_cpuid *host,
		    const struct description *d, struct error **err)
{
	cpuid->count = 0;
	for (unsigned int i = 0; i < d->count; i++) {
		if (strncmp(d->entries[i].key, "cpuid.", 6) == 0) {
			int code = parse_entry(cpuid, d, &d->entries[i], err);

			if (code < 0)
				return code;
		}
	}
	for (unsigned int i = 0; i < x86_feature_register_count; i++) {
		const struct x86_feature_register *where = &x86_feature_registers[i];
		uint32_t missing = x86_cpuid_get(cpuid, where->function, where->index, where->reg) &
				   ~x86_cpuid_get(host, where->function, where->index, where->reg);

		if (missing)
			return error_set(
				err, -ENOTSUP,
				"cpuid.0x%" PRIx32 ".%" PRIu32 ".%s: the guest was given "
				"the CPU feature %s, which this host does not have; a "
				"guest started with --cpu baseline moves to more hosts",
				where->function, where->index, register_names[where->reg],
				x86_feature_name(where, (unsigned int)__builtin_ctz(missing)));
	}
	return 0;
}
