/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU that a guest is shown, and whether another host can show it too. */
#include "unit.h"

#include <errno.h>
#include "arch/x86/cpuid.h"
#include "arch/x86/msr.h"
#include "arch/x86/probe.h"

enum { EAX, EBX, ECX, EDX };

static struct x86_cpuid make_host(void)
{
	return (struct x86_cpuid){
		.leaves = {{0, 0, {0xd, 0x756e6547, 0x6c65746e, 0x49656e69}},
			   {1, 0, {0x606a6, 0, 0x9ed82203, 0x0fabfbff}},
			   {7, 0, {0, 0x00010020, 0, 0}}, /* avx2, avx512f */
			   {0xd, 0, {0xe7, 0, 0xa80, 0}},
			   {0x80000001, 0, {0, 0, 1, 0x28100800}}},
		.count = 5,
	};
}

static void test_describe_and_adopt(void **state)
{
	struct x86_cpuid host = make_host(), adopted;
	struct description d = {0};
	struct error *err = NULL;

	assert_int_equal(x86_cpuid_describe(&host, &d), 0);
	assert_string_equal(description_get(&d, "cpuid.0x7.0.ebx"), "0x00010020");
	assert_null(description_get(&d, "cpuid.0x7.0.ecx"));
	assert_ok(x86_cpuid_adopt(&adopted, &host, &d, &err), err);
	assert_int_equal(adopted.count, host.count);
	for (unsigned int i = 0; i < host.count; i++)
		for (unsigned int reg = EAX; reg <= EDX; reg++)
			assert_int_equal(x86_cpuid_get(&adopted, host.leaves[i].function,
						       host.leaves[i].index, reg),
					 host.leaves[i].reg[reg]);
	assert_true(x86_cpuid_xcr0(&adopted) == 0xe7);
	description_free(&d);
}

static void test_missing_feature(void **state)
{
	struct x86_cpuid host = make_host(), other = make_host(), adopted;
	struct description d = {0};
	struct error *err = NULL;

	assert_int_equal(x86_cpuid_describe(&host, &d), 0);
	other.leaves[2].reg[EBX] = 0x20; /* without avx512f */
	assert_refused(x86_cpuid_adopt(&adopted, &other, &d, &err), err, -ENOTSUP,
		       "cpuid.0x7.0.ebx: the guest was given the CPU feature avx512f");
	/* One more than the source has is no matter; nor is another model number. */
	other = make_host();
	other.leaves[2].reg[EBX] |= 1u << 18;
	other.leaves[1].reg[EAX] = 0x806f8;
	assert_ok(x86_cpuid_adopt(&adopted, &other, &d, &err), err);
	assert_int_equal(x86_cpuid_get(&adopted, 1, 0, EAX), 0x606a6);
	assert_int_equal(x86_cpuid_get(&adopted, 7, 0, EBX), 0x00010020);
	description_free(&d);
}

static void test_hostile_description(void **state)
{
	static const struct {
		const char *key, *value, *text;
	} bad[] = {
		{"cpuid.0x7.0.rbx", "0x1", "no CPUID register"},
		{"cpuid.0x7.0", "0x1", "no CPUID register"},
		{"cpuid.0x7.0.ebxx", "0x1", "no CPUID register"},
		{"cpuid.", "0x1", "no CPUID register"},
		{"cpuid.0x1ffffffff.0.eax", "0x1", "no CPUID register"},
		{"cpuid.0x7.0.eax", "0x100000000", "32-bit"},
		{"cpuid.0x7.0.eax", "many", "32-bit"},
	};
	struct x86_cpuid host = make_host(), adopted;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct description d = {0};
		struct error *err = NULL;

		assert_int_equal(description_add(&d, true, bad[i].key, "%s", bad[i].value), 0);
		assert_refused(x86_cpuid_adopt(&adopted, &host, &d, &err), err, -EPROTO,
			       bad[i].text);
		description_free(&d);
	}
}

static void test_too_many_leaves(void **state)
{
	struct x86_cpuid host = make_host(), adopted;
	struct description d = {0};
	struct error *err = NULL;
	char key[64];

	for (unsigned int i = 0; i <= X86_CPUID_MAX; i++) {
		snprintf(key, sizeof(key), "cpuid.0x4.%u.eax", i);
		assert_int_equal(description_add(&d, true, key, "0x1"), 0);
	}
	assert_refused(x86_cpuid_adopt(&adopted, &host, &d, &err), err, -EPROTO, "more than 128");
	description_free(&d);
}

static void test_models(void **state)
{
	struct x86_cpuid host, baseline, adopted;
	struct description d = {0};
	struct kvm_system system;
	struct error *err = NULL;

	if (kvm_system_open(&system, &err) < 0) {
		print_message("skipped: %s\n", error_text(err));
		error_free(&err);
		skip();
	}
	assert_refused(x86_cpuid_init(&host, &system, "fast", &err), err, -EINVAL,
		       "host or baseline");
	assert_ok(x86_cpuid_init(&host, &system, "host", &err), err);
	assert_ok(x86_cpuid_init(&baseline, &system, "baseline", &err), err);
	/* A hypervisor, no nested one, no performance counters. */
	assert_true(x86_cpuid_get(&host, 1, 0, ECX) >> 31);
	assert_int_equal(x86_cpuid_get(&host, 1, 0, ECX) & (1u << 5 | 1u << 15), 0);
	assert_int_equal(x86_cpuid_get(&host, 0xa, 0, EAX), 0);
	/* The baseline is the same everywhere in name, and without AVX and XSAVE. */
	assert_int_equal(x86_cpuid_get(&baseline, 1, 0, EAX), 0x206c1);
	assert_int_equal(x86_cpuid_get(&baseline, 1, 0, ECX) & (1u << 26 | 1u << 28), 0);
	assert_int_equal(x86_cpuid_get(&baseline, 7, 0, EBX), 0);
	assert_true(x86_cpuid_xcr0(&baseline) == 0);
	assert_true(x86_cpuid_get(&baseline, 1, 0, EDX) >> 26 & 1); /* sse2 */
	/* It fits wherever its host's own model fits. */
	assert_int_equal(x86_cpuid_describe(&baseline, &d), 0);
	assert_ok(x86_cpuid_adopt(&adopted, &host, &d, &err), err);
	description_free(&d);
	kvm_system_close(&system);
}

static void test_rates_and_msrs(void **state)
{
	struct x86_host host = {.msrs = {0x174, 0x277}, .msr_count = 2};

	assert_true(x86_tsc_rates_agree(2793438, 2793438));
	assert_true(x86_tsc_rates_agree(2793438, 2793438 + 698)); /* 250 ppm */
	assert_false(x86_tsc_rates_agree(2793438, 2793438 + 700));
	assert_false(x86_tsc_rates_agree(2793438, 2000000));
	assert_true(x86_host_has_msr(&host, 0x277));
	assert_false(x86_host_has_msr(&host, 0x278));
	assert_true(x86_msr_left_out(0x10));
	assert_true(x86_msr_left_out(0xc1));
	assert_false(x86_msr_left_out(0x277));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_describe_and_adopt),
		cmocka_unit_test(test_missing_feature),
		cmocka_unit_test(test_hostile_description),
		cmocka_unit_test(test_too_many_leaves),
		cmocka_unit_test(test_models),
		cmocka_unit_test(test_rates_and_msrs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
